package dispatch

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// behind returns a Scheduler whose memory is full of messages of one tenant, and a
// function that answers its next lookahead.
func behind(t *testing.T) (s *Scheduler, look func(rows []*Message, at Reach) *Read) {
	t.Helper()
	now := start
	s = New(Config{
		BatchSize: 4, Window: 1, BufferBytes: 1 << 20, LookaheadRows: 10, PollMin: time.Millisecond, PollMax: time.Second,
		StallTimeout: time.Minute, RescanEvery: time.Hour, Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	position := int64(0)
	confirming := true // but the confirmed messages are not deleted, and stay in memory
	step := func() *Read {
		now = now.Add(10 * time.Millisecond)
		c := s.Step(now)
		for _, p := range c.Publish {
			if confirming {
				s.Published(now, p, Confirmed, nil)
			}
		}
		return c.Read
	}
	for {
		read := step()
		if read == nil {
			continue
		}
		if read.Lookahead {
			confirming = false
			s.RowsRead(now, read, nil, Reach{Highest: position, Covered: position, Horizon: 1, Ceiling: 9})
			break
		}
		var rows []*Message
		for range read.Limit {
			position++
			rows = append(rows, &Message{Position: position, ID: strconv.FormatInt(position, 10), Topic: "t", Tenant: "many"})
		}
		s.RowsRead(now, read, rows, Reach{Highest: position, Covered: position, Horizon: 1, Ceiling: 9})
	}
	return s, func(rows []*Message, at Reach) *Read {
		for {
			if read := step(); read != nil {
				require.True(t, read.Lookahead, "the memory is full")
				s.RowsRead(now, read, rows, at)
				return read
			}
		}
	}
}

// Trap 100.
func TestLookaheadLeavesOutTheGroupThatFillsTheMemory(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	few := &Message{Position: 1000, ID: "few", Topic: "t", Tenant: "few"}
	read := look([]*Message{few}, Reach{Highest: 1000, Covered: Everything, Horizon: 1, Ceiling: 9})
	require.Equal(t, []Group{{"t", "many"}}, read.Groups)
	require.Same(t, few, s.buffer.messages[1000])
	require.Equal(t, 1, s.buffer.ahead.ready.count, "it takes turns with the others")
}

// Trap 100. A row can be committed late, so a lookahead asks about the keys of all rows
// that were examined before all older transactions had ended.
func TestLookaheadLooksForLateCommitsOfItsKeys(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	examined := Reach{Highest: 500, Covered: 500, Horizon: 9, Ceiling: 12}
	look(nil, examined)
	s.Wrote(s.Sight()) // a transaction that began before those of the late rows have ended
	open := Reach{Highest: 600, Covered: 600, Horizon: 9, Ceiling: 12}
	read := look(nil, open)
	require.Equal(t, int64(500), read.From)
	require.Less(t, read.Late, int64(500))
	read = look(nil, open)
	require.Less(t, read.Late, int64(500), "a transaction is open that is older than the rows")
	ended := Reach{Highest: 600, Covered: 600, Horizon: 12, Ceiling: 12}
	look(nil, ended)
	require.Equal(t, int64(500), look(nil, ended).Late)
}

// Trap 100.
func TestLookaheadSkipsLaterRowsOfASkippedKey(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	skipped := Reach{Highest: 500, Covered: 500, Horizon: 1, Ceiling: 9, Skipped: []Skipped{{Position: 490, KeyHash: -7}}}
	look([]*Message{{Position: 480, ID: "before", Key: "k", KeyHash: -7, Topic: "t", Tenant: "few"}}, skipped)
	require.NotNil(t, s.buffer.messages[480])
	look([]*Message{
		{Position: 510, ID: "after", Key: "k", KeyHash: -7, Topic: "t", Tenant: "few"},
		{Position: 511, ID: "other", Key: "l", KeyHash: 8, Topic: "t", Tenant: "few"},
	}, Reach{Highest: 511, Covered: Everything, Horizon: 1, Ceiling: 9})
	require.Nil(t, s.buffer.messages[510])
	require.NotNil(t, s.buffer.messages[511])
	s.Rescan()
	require.Nil(t, s.lookahead.skipped.bits, "a new round begins")
}

// Trap 100. Transaction ids go back when a replica that lagged behind becomes the
// primary. It uses positions again that were examined.
func TestLookaheadBeginsAnewWhenTransactionIDsGoBack(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	look(nil, Reach{Highest: 500, Covered: 500, Horizon: 9, Ceiling: 12})
	replica := Reach{Highest: 510, Covered: Everything, Horizon: 5, Ceiling: 6}
	look([]*Message{{Position: 510, ID: "behind", Topic: "t", Tenant: "few"}}, replica)
	require.Nil(t, s.buffer.messages[510], "rows below it were not examined")
	require.Less(t, look(nil, replica).From, int64(500))
}

// Trap 100. The messages that lookaheads have found use a quarter of the memory. They do
// not take the room of sweeps, which read the backlog.
func TestLookaheadUsesAQuarterOfTheMemory(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	inMemory := s.buffer.count()
	quarter := s.buffer.limit / 4
	for found := 0; found < quarter; {
		position := int64(1000 + found)
		read := look(nil, Reach{Highest: position, Covered: position, Horizon: 1, Ceiling: 9})
		require.Equal(t, min(s.config.BatchSize, quarter-found), read.Limit)
		var rows []*Message
		for range read.Limit {
			found++
			rows = append(rows, &Message{Position: int64(1000 + found), ID: strconv.Itoa(found), Topic: "t", Tenant: strconv.Itoa(found)})
		}
		look(rows, Reach{Highest: rows[len(rows)-1].Position, Covered: rows[len(rows)-1].Position, Horizon: 1, Ceiling: 9})
	}
	require.Equal(t, quarter, s.buffer.ahead.messages)
	require.Equal(t, inMemory, s.buffer.count())
	require.Nil(t, s.planLookahead(s.lookahead.next), "a settlement makes room")
}

// Trap 100. A message waits in the broker behind those in flight.
func TestLookaheadThatFindsMessagesMakesTheWindowSmaller(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	s.config.Window = 8
	few := &Message{Position: 1000, ID: "few", Topic: "t", Tenant: "few"}
	look([]*Message{few}, Reach{Highest: 1000, Covered: Everything, Horizon: 1, Ceiling: 9})
	require.Equal(t, 2, s.window(s.lookahead.found))
	require.Equal(t, 8, s.window(s.lookahead.found.Add(6*time.Second)))
}
