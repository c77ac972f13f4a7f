package forwarder

import (
	"bytes"
	"strings"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
)

// tenants reads the tenants of messages. Messages with the same tenant share one
// string.
type tenants struct{ last string }

var tenantKey = []byte(`"` + meta.TenantID + `"`)

// of returns the tenant in the metadata of a message, or "" if the metadata has no
// tenant. Usually it does not decode the metadata, because the forwarder does this
// later, when it publishes the message.
func (t *tenants) of(metadata []byte) string {
	_, rest, found := bytes.Cut(metadata, tenantKey)
	if !found {
		return ""
	}
	rest = bytes.TrimLeft(rest, ": ")
	if bytes.IndexByte(metadata, '\\') < 0 && len(rest) > 0 && rest[0] == '"' {
		if end := bytes.IndexByte(rest[1:], '"'); end >= 0 {
			if value := rest[1 : 1+end]; string(value) != t.last {
				t.last = outboxrow.Label(string(value))
			}
			return t.last
		}
	}
	decoded, err := outboxrow.DecodeMetadata(metadata)
	if tenant := decoded[meta.TenantID]; err == nil && strings.IndexByte(tenant, 0) < 0 {
		return outboxrow.Label(tenant)
	}
	return "" // check reports a damaged row
}
