package embedded

import "fmt"

// Destination names where messages go, for forwarder.Config.Destination: the
// embedded transport, and the tables that its consumers read.
func (t *Transport) Destination() string {
	return fmt.Sprintf("embedded transport, tables %s", t.config.Schema.Table("parked"))
}
