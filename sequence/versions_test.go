package sequence_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/sequence"
)

func TestVersionsShowWhatIsAppliedAndWhatWaits(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		versions, err := sequence.NewVersions(db.DB, sequence.VersionsConfig{Schema: b.schema})
		if err != nil {
			t.Fatal(err)
		}
		b.run(hold, nil)
		b.publish("a1", "a2", "c1")
		b.eventually("three versions are applied", func() bool { return b.effects("a") == "a1 a2" && b.effects("c") == "c1" })
		b.publish("a4", "a5", "b3")
		b.early(3)

		var applied []string
		var after sequence.Version
		for { // each page has one row
			page, err := versions.List(t.Context(), sequence.VersionFilter{Consumer: "projection", Limit: 1}, after)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			after = page[0]
			if time.Since(after.AppliedAt).Abs() > time.Minute {
				t.Errorf("applied at %v", after.AppliedAt)
			}
			applied = append(applied, fmt.Sprintf("%s %s %d from %d", after.AggregateType, after.AggregateID, after.Version, after.CompleteFrom))
		}
		if got := strings.Join(applied, ", "); got != "account a 2 from 1, account c 1 from 1" {
			t.Errorf("applied: %s", got)
		}

		var waiting []string
		var last sequence.Waiting
		for {
			page, err := versions.Waiting(t.Context(), sequence.VersionFilter{Limit: 1}, last)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			last = page[0]
			if time.Since(last.EarlySince).Abs() > time.Minute || last.DueAt.IsZero() || last.Consumer != "projection" {
				t.Errorf("waiting: %+v", last)
			}
			waiting = append(waiting, fmt.Sprintf("%s: %s %s %d after %d (%t)",
				last.MessageID, last.AggregateType, last.AggregateID, last.Version, last.Last, last.Known))
		}
		if got := strings.Join(waiting, ", "); got !=
			"a4: account a 4 after 2 (true), a5: account a 5 after 2 (true), b3: account b 3 after 0 (false)" {
			t.Errorf("waiting: %s", got)
		}

		one, err := versions.Waiting(t.Context(), sequence.VersionFilter{AggregateType: "account", AggregateID: "b"}, sequence.Waiting{})
		if err != nil || len(one) != 1 || one[0].MessageID != "b3" {
			t.Errorf("%v, of b: %+v", err, one)
		}
		if _, err := versions.Waiting(t.Context(), sequence.VersionFilter{AggregateType: "account"}, last); err == nil ||
			!strings.Contains(err.Error(), "set both or none") {
			t.Errorf("a type without an id: %v", err)
		}
		if _, err := versions.List(t.Context(), sequence.VersionFilter{Limit: -1}, after); err == nil ||
			!strings.Contains(err.Error(), "Limit is -1") {
			t.Errorf("limit: %v", err)
		}
	})
	if _, err := sequence.NewVersions(nil, sequence.VersionsConfig{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("no database: %v", err)
	}
}
