package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestAnArchiveKeepsTheLatestReports(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		p := newPlace(t, db)
		a, err := NewArchive(db.DB, p.config)
		kit.OK(t, err)
		none, err := a.List(t.Context(), 0)
		kit.OK(t, err)
		if len(none) != 0 {
			t.Fatalf("none is %+v, want none", none)
		}
		if _, err := a.Get(t.Context(), 1); !errors.Is(err, ErrNotKept) {
			t.Fatalf("Get: got %v, want ErrNotKept", err)
		}

		at := time.Now().UTC().Truncate(time.Millisecond)
		r := Report{Consumer: billed, Topics: []string{topic}, From: at, Until: at, AsOf: at, Sent: 7, Known: 5}
		for n := range keptMessages + 1 {
			r.Missing = append(r.Missing, Missing{MessageID: fmt.Sprint(n), Topic: topic, SentLogID: int64(n), SentAt: at, LastSentAt: at})
		}
		for n := range keptMessages + 2 {
			r.Phantoms = append(r.Phantoms, Phantom{MessageID: fmt.Sprint("p", n), State: "quarantined", At: at})
		}
		kit.OK(t, a.Keep(t.Context(), r, Report{Consumer: "mail", Missing: []Missing{}}))
		kept, err := a.Get(t.Context(), 1)
		kit.OK(t, err)
		if kept.Missing != keptMessages+1 {
			t.Fatalf("kept.Missing is %d, want %d", kept.Missing, keptMessages+1)
		}
		if kept.Phantoms != keptMessages+2 {
			t.Fatalf("kept.Phantoms is %d, want %d", kept.Phantoms, keptMessages+2)
		}
		if got := kept.At.Unix(); math.Abs(float64(got)-float64(at.Unix())) > 60 {
			t.Fatalf("kept.At.Unix is %v, want %v, give or take 60", got, at.Unix())
		}
		r.Missing, r.Phantoms = r.Missing[:keptMessages], r.Phantoms[:keptMessages]
		if !reflect.DeepEqual(kept.Report, r) {
			t.Fatalf("kept.Report is %+v, want %+v", kept.Report, r)
		}

		for range keptReports {
			kit.OK(t, a.Keep(t.Context(), Report{Consumer: billed}))
		}
		seen := map[string]int{}
		for before := int64(0); ; {
			page, err := a.List(t.Context(), before)
			kit.OK(t, err)
			if len(page) == 0 {
				break
			}
			if len(page) > listedReports {
				t.Fatalf("len(page) is %d, want at most %d", len(page), listedReports)
			}
			for _, k := range page {
				if before != 0 && k.ID >= before {
					t.Fatalf("report %d is behind report %d, want the newest first", k.ID, before)
				}
				before = k.ID
				seen[k.Report.Consumer]++
			}
		}
		if want := map[string]int{billed: keptReports, "mail": 1}; !maps.Equal(seen, want) {
			t.Fatalf("seen is %v, want %v", seen, want)
		}
		if _, err := a.Get(t.Context(), 1); !errors.Is(err, ErrNotKept) {
			t.Fatalf("Get: got %v, want ErrNotKept", err)
		}
	})
	if _, err := NewArchive(nil, schema.Config{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Fatalf(`NewArchive: got %v, want an error with "db is nil"`, err)
	}
}
