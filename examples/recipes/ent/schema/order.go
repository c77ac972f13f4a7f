// Package schema describes the tables for ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is the table orders.
type Order struct{ ent.Schema }

// Fields returns the columns.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.String("id"), field.Int64("total")}
}
