package meta_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/meta"
)

func TestMessageIsNamed(t *testing.T) {
	got := meta.LogFields("m1", map[string]string{
		"once_tenant_id": "acme", "once_aggregate_type": "order", "once_aggregate_id": strings.Repeat("ä", 200),
		"once_aggregate_version": "3", "once_event_type": "placed",
		"once_ordering_key": "secret", "card": "secret",
	}, watermill.LogFields{"topic": "t"})
	want := watermill.LogFields{
		"message_uuid": "m1", "topic": "t", "tenant": "acme", "aggregate_type": "order",
		"aggregate_id": strings.Repeat("ä", 127) + "\uFFFD", "version": "3", "event_type": "placed",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := meta.LogFields("m1", nil, nil); !reflect.DeepEqual(got, watermill.LogFields{"message_uuid": "m1"}) {
		t.Errorf("got %v", got)
	}
}
