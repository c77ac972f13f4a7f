package recipes

import (
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/uptrace/bun"

	"github.com/watermill-once/once/outbox"
)

// topic is the topic of the event that says that an order was placed.
const topic = "orders.placed"

// Order is a row of the table orders.
type Order struct {
	bun.BaseModel `bun:"table:orders" db:"-" gorm:"-" json:"-"`

	ID    string `bun:",pk"  db:"id"      gorm:"primaryKey" json:"id"`
	Total int64  `db:"total" json:"total"`
}

// placed returns the event which says that an order was placed. Its ordering key is the
// id of the order.
func placed(order Order) (*message.Message, error) {
	payload, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	msg := outbox.NewMessage(payload)
	outbox.SetOrderingKey(msg, order.ID)
	return msg, nil
}
