package forwarder

import (
	"bytes"
	"testing"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
)

// After a read that returned many rows, lib/pq receives the payloads of the next read in
// binary form. pgx always receives payloads in binary form, and reads them in one round
// trip.
func TestPayloadsOfABacklogAreReadInBinaryForm(t *testing.T) {
	t.Parallel()
	eachCounted(t, func(t *testing.T, server testkit.Database, s *store, trips *counting) {
		if _, err := server.ExecContext(t.Context(), `
			INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, ordering_key)
			SELECT 'm' || n, 'topic', 0, '\x00ff5c'::bytea || decode(lpad(to_hex(n), 8, '0'), 'hex'), '{}', 'k'
			FROM generate_series(1, $1::int) AS n`, bulkRows); err != nil {
			t.Fatal(err)
		}
		read := func(read dispatch.Read) found {
			t.Helper()
			read.Slots, read.Bytes = []int64{0}, 1<<20
			got, err := s.rows(t.Context(), &read)
			if err != nil {
				t.Fatal(err)
			}
			if got.reach.Horizon <= 0 && !read.Refill || len(got.rows) != read.Limit && !read.Lookahead {
				t.Fatalf("%d rows, %+v, want %d rows and a horizon", len(got.rows), got.reach, read.Limit)
			}
			for n, m := range got.rows {
				if want := []byte{0, 0xff, '\\', 0, 0, byte((n + 1) >> 8), byte(n + 1)}; !bytes.Equal(m.Payload, want) {
					t.Fatalf("the payload of row %d is %q, want %q", n, m.Payload, want)
				}
			}
			return got
		}
		text := s.reader.AsText()
		for n, c := range []struct {
			read dispatch.Read
			bulk bool // of the next read
		}{
			{dispatch.Read{Limit: bulkRows - 1}, false},
			{dispatch.Read{Limit: bulkRows}, text},
			{dispatch.Read{Limit: bulkRows}, text},
			{dispatch.Read{Limit: bulkRows, Refill: true, Keys: []string{"k"}}, text},
			{dispatch.Read{Limit: 1, Lookahead: true, From: bulkRows}, text}, // finds nothing, and says nothing about the next sweep
			{dispatch.Read{Limit: 1}, false},
			{dispatch.Read{Limit: 1}, false},
		} {
			inTx, before := s.bulk, trips.writes.Load()
			read(c.read)
			if s.bulk != c.bulk {
				t.Errorf("after read %d, the next read is in a transaction: %v, want %v", n, s.bulk, c.bulk)
			}
			if got := trips.writes.Load() - before; n > 0 && text && !c.read.Lookahead && (got > 1) != inTx {
				t.Errorf("read %d took %d round trips", n, got)
			}
		}
	})
}
