package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(drainerVariable) != "" {
		os.Exit(command(nil))
	}
	kit.Main(m)
}

// tiny returns a bench with minimal sizes.
func tiny(t *testing.T) (*bench, kit.Broker) {
	t.Helper()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	return &bench{
		progress: t.Output(),
		options: options{
			groups: groups(), kinds: []string{"quorum"}, runs: 1, pgDSN: db.DSN, amqpURL: broker.URL,
			sizes: sizes{
				messages: storedTogether, slow: 10, backlog: 3000, start: 200, small: 100, rounds: 2,
				ahead: 200, hold: 200 * time.Millisecond, baseline: 200 * time.Millisecond, stopped: 300 * time.Millisecond,
				producing: 100 * time.Millisecond, delivering: 200 * time.Millisecond,
				consume: 50, remembered: 1000, compared: 1000, entries: 1000, rows: 1000, waiting: 10,
				watched: 40_000, watching: 400 * time.Millisecond, window: 100 * time.Millisecond, resting: 100 * time.Millisecond,
			},
		},
	}, broker
}

func nothingIsLeft(t *testing.T, broker kit.Broker) {
	t.Helper()
	for _, what := range []string{"list_queues", "list_exchanges"} {
		if left := broker.Ctl(t, what, "--vhost", broker.VHost, "--quiet", "name"); strings.Contains(left, "once-bench") {
			t.Errorf("%s: %s", what, left)
		}
	}
}

// producerRow matches the ids of the rows of group producer. These ids have three
// parts.
var producerRow = regexp.MustCompile(`^producer-(.+)-(bare|event|stock|empty)-\d+(-cpu|-stock)?$`)

// explained returns the names that the docs must contain, in backquotes, to explain the row with
// this id.
func explained(id string) []string {
	if parts := producerRow.FindStringSubmatch(id); parts != nil {
		switch driver, kind, end := parts[1], parts[2], parts[3]; end {
		case "-cpu":
			return []string{driver, kind, end}
		case "-stock":
			return []string{driver, "producer-DRIVER-" + kind + "-WRITERS-stock"}
		default:
			return []string{driver, kind}
		}
	}
	return []string{strings.Replace(id, "-quorum", "-*", 1)}
}

// wronglyZero reports whether the figure of a row is 0 and must not be. The stock forwarder
// stops while a transaction is open. During a short rest no lease is renewed.
func wronglyZero(r row) bool {
	return r.Median == 0 && r.ID != "idle-stock" && r.ID != "rest-ids"
}

// longer returns a copy of b whose measurements take so many times the time.
func (b *bench) longer(times int) *bench {
	longer := *b
	for _, d := range []*time.Duration{
		&longer.hold, &longer.baseline, &longer.stopped, &longer.producing, &longer.delivering, &longer.resting, &longer.watching,
		&longer.window,
	} {
		*d *= time.Duration(times)
	}
	return &longer
}

func TestEveryGroupMeasuresWhatTheDocsExplain(t *testing.T) {
	kit.Long(t)
	b, broker := tiny(t)
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "contributing", "benchmarks.md"))
	kit.OK(t, err)
	measured := make([][]row, len(b.groups))
	t.Run("groups", func(t *testing.T) { // ends after its parallel subtests
		for i, g := range b.groups {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel() // the figures do not matter
				// On a busy machine nothing may happen in a short time. Then the group is measured
				// again, with more time.
				for times := 1; ; times *= 5 {
					var err error
					measured[i], err = g.measure(b.longer(times), t.Context())
					kit.OK(t, err)
					if !slices.ContainsFunc(measured[i], wronglyZero) || times > 100 {
						break
					}
				}
			})
		}
	})
	ids := map[string]row{}
	for i, g := range b.groups {
		rows := measured[i]
		if !strings.Contains(string(docs), "`"+g.name+"`") {
			t.Errorf("group %s is not explained", g.name)
		}
		for _, r := range rows {
			if _, twice := ids[r.ID]; twice {
				t.Errorf("two rows have the id %s", r.ID)
			}
			ids[r.ID] = r
			for _, part := range explained(r.ID) {
				if !strings.Contains(string(docs), "`"+part+"`") {
					t.Errorf("row %s: %s is not explained", r.ID, part)
				}
			}
		}
	}
	for id, r := range ids {
		if _, ok := ids[r.Of]; r.Of != "" && !ok {
			t.Errorf("%s is compared with %s, which does not exist", id, r.Of)
		}
		if wronglyZero(r) || r.ID == "idle-stock" && r.Median != 0 {
			t.Errorf("%s is %v", id, r.Median)
		}
	}
	nothingIsLeft(t, broker)
}

// An interrupted measurement ends soon, and removes what it has created.
func TestInterruptedMeasurementLeavesNothingBehind(t *testing.T) {
	kit.Long(t)
	for _, g := range groups() {
		if !slices.Contains([]string{"drain", "snapshot", "producer", "memory"}, g.name) {
			continue // their messages wait in the same table as the messages of a listed group
		}
		t.Run(g.name, func(t *testing.T) {
			b, broker := tiny(t)
			b.messages, b.runs, b.backlog = 50_000, 1000, 200_000
			b.hold, b.baseline, b.producing = time.Hour, time.Hour, time.Hour
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := g.measure(b, ctx)
			if err == nil {
				t.Fatal("the measurement ended before it was interrupted")
			}
			if ctx.Err() == nil || strings.Contains(err.Error(), "left") {
				t.Error(err)
			}
			nothingIsLeft(t, broker)
		})
	}
}

// The rows that fill inserts equal a row that the outbox inserts, except for their ids,
// keys and slots.
func TestFilledRowsEqualRowsOfTheOutbox(t *testing.T) {
	b, _ := tiny(t)
	for name, keys := range map[string]int{"without keys": 0, "with keys": 10} {
		t.Run(name, func(t *testing.T) {
			s, err := b.newScene(t.Context(), "classic")
			kit.OK(t, err)
			defer func() {
				kit.Check(t, s.Close())
			}()
			msg := newMessage()
			if keys > 0 {
				outbox.SetOrderingKey(msg, "key-1")
			}
			kit.OK(t, s.fill(t.Context(), 1000, keys))
			kit.OK(t, outbox.InTx(t.Context(), s.db.DB, func(_ *sql.Tx, events message.Publisher) error {
				return events.Publish(s.queue.name, msg)
			}))
			var rows, alike, ids, slots, keySlots int
			kit.OK(t, s.db.QueryRowContext(t.Context(), `
				SELECT count(*),
				       count(*) FILTER (WHERE (o.topic, o.payload, o.metadata::jsonb - $2, o.attempts)
				                            = (m.topic, m.payload, m.metadata::jsonb - $2, m.attempts)
				                          AND (o.ordering_key IS NULL) = (m.ordering_key IS NULL)
				                          AND o.ordering_key IS NOT DISTINCT FROM o.metadata->>$2
				                          AND o.due_at IS NULL AND length(o.message_id) = length(m.message_id)),
				       count(DISTINCT o.message_id), count(DISTINCT o.slot), count(DISTINCT (o.ordering_key, o.slot))
				FROM once_outbox AS o, (SELECT * FROM once_outbox WHERE message_id = $1) AS m
				WHERE o.message_id <> $1`, msg.UUID, outbox.OrderingKey).Scan(&rows, &alike, &ids, &slots, &keySlots))
			wantSlots := 64
			if keys > 0 {
				wantSlots = keys
			}
			if rows != 1000 || alike != 1000 || ids != 1000 || slots != wantSlots || keySlots != wantSlots {
				t.Errorf("%d rows, %d alike, %d ids, %d slots, %d of keys", rows, alike, ids, slots, keySlots)
			}
		})
	}
}

// If a measurement fails, the rows of earlier groups are still printed and written.
func TestRowsOfEarlierGroupsAreShown(t *testing.T) {
	b, _ := tiny(t)
	broken := errors.New("broken")
	b.groups = []group{
		{"first", "", func(*bench, context.Context) ([]row, error) { return []row{of("a", 1).row()}, nil }},
		{"second", "", func(*bench, context.Context) ([]row, error) { return nil, broken }},
	}
	b.out = filepath.Join(t.TempDir(), "rows.json")
	var out bytes.Buffer
	if err := b.run(t.Context(), &out); !errors.Is(err, broken) || !strings.Contains(err.Error(), "second") {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "what a is") {
		t.Error(out.String())
	}
	if _, err := os.Stat(b.out); !errors.Is(err, os.ErrNotExist) {
		t.Error("the JSON file was written although a group failed")
	}
}
