package quarantine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

func TestCountCountsWhatListReturns(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		count := func(f operate.Filter) int {
			t.Helper()
			n, err := b.store.Count(t.Context(), f)
			kit.OK(t, err)
			return n.N
		}
		if n := count(operate.Filter{}); n != 0 {
			t.Errorf("an empty quarantine has %d entries", n)
		}
		mixed(b)
		all := b.list()
		for name, f := range map[string]operate.Filter{
			"nothing": {}, "all": {All: true}, "ids": {IDs: []int64{all[1].ID, 4711}}, "no ids": {IDs: []int64{}},
			"consumer": {Consumer: "inventory"}, "topic": {Topic: "orders.changed"}, "message": {MessageID: "p1"},
			"tenant": {Tenant: "acme"}, "reason": {Reason: poison.ReasonPermanent}, "fingerprint": {Fingerprint: all[0].Fingerprint},
			"time": {FailedAfter: time.Unix(2, 0), FailedBefore: time.Unix(4, 0)}, "page": {AfterID: all[1].ID},
			"text that no column can hold": {Consumer: "a\x00b\xff"}, "none": {Topic: "no such topic"},
		} {
			listed, err := b.store.List(t.Context(), f)
			kit.OK(t, err)
			if n := count(f); n != len(listed.Rows) {
				t.Errorf("%s: Count returns %d, List %d entries", name, n, len(listed.Rows))
			}
		}
		if n, err := b.store.Count(t.Context(), operate.Filter{AfterGroup: "zzz"}); err == nil {
			t.Errorf("the page of groups counts %d entries, want an error", n.N)
		}
		for limit, want := range map[int]int{1: 1, len(all): len(all), 1000: len(all)} {
			if n := count(operate.Filter{Limit: limit}); n != want {
				t.Errorf("with Limit %d, %d entries are counted, want %d", limit, n, want)
			}
		}
		kit.OK(t, b.store.Discard(t.Context(), operate.Act{Actor: "ann", Why: "a test"}, all[0].ID))
		if n := count(operate.Filter{}); n != len(all)-1 {
			t.Errorf("a discarded entry is counted: %d", n)
		}
	})
}

func TestCountRefusesBadFilters(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for text, f := range map[string]operate.Filter{
			"Limit is -1": {Limit: -1}, "AfterID is -1": {AfterID: -1}, `Reason is "misspelt"`: {Reason: "misspelt"},
			"All is set":                {All: true, Topic: "t"},
			"FailedBefore is not after": {FailedAfter: time.Unix(2, 0), FailedBefore: time.Unix(2, 0)},
		} {
			n, err := b.store.Count(t.Context(), f)
			if err == nil || !strings.HasPrefix(err.Error(), "quarantine: count: ") || !strings.Contains(err.Error(), text) ||
				n != (operate.Count{}) {
				t.Errorf("%s: got %+v, %v", text, n, err)
			}
		}
	})
}
