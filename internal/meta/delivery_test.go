package meta

import (
	"maps"
	"testing"
)

// The mark of a redelivered message in watermill-amqp v3 does not travel to the messages
// that its handler produces.
func TestMarkOfV3DoesNotTravel(t *testing.T) {
	got := WithoutDelivery(map[string]string{"customer": "17", "_watermill_amqp_redelivered": "true"})
	if want := map[string]string{"customer": "17"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
