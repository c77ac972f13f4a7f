package outboxrow

import (
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
)

// Values of the column kind of {pauses}.
const (
	PausedTopic  = "topic"
	PausedTenant = "tenant"
)

// Tenant returns an SQL expression for the tenant of row o. The expression shortens a
// long tenant as [Label] does. The value is "" if the row has no tenant.
func Tenant(d dialect.Dialect) string {
	field := `COALESCE(substr(` + MetadataField(d, meta.TenantID) + `, 1, 255), '')`
	if d.SQLite() {
		return field
	}
	// Most rows without a tenant need no decoding.
	return `CASE WHEN strpos(CAST(o.metadata AS text), '"` + meta.TenantID + `"') > 0 THEN ` + field + ` ELSE '' END`
}

// Paused returns an SQL condition. It is true if the topic of row o is in topics, or
// its tenant is in tenants. Both arguments are SQL lists in parentheses.
func Paused(d dialect.Dialect, topics, tenants string) string {
	return `CASE WHEN o.topic IN ` + topics + ` THEN 1 = 1 ELSE ` + Tenant(d) + ` IN ` + tenants + ` END`
}
