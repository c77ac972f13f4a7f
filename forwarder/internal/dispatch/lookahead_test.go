package dispatch

import (
	"cmp"
	"slices"
	"strconv"
	"testing"
	"time"
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
			read := step()
			switch {
			case read == nil:
			case read.State:
				s.RowsRead(now, read, nil, Reach{})
			default:
				if !read.Lookahead {
					t.Fatal("read.Lookahead is false: the memory is full")
				}
				s.RowsRead(now, read, rows, at)
				return read
			}
		}
	}
}

// Trap 100. While the messages of one group fill the memory, a lookahead leaves out this
// group. The messages that it finds are ready to be published.
func TestLookaheadLeavesOutTheGroupThatFillsTheMemory(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	few := &Message{Position: 1000, ID: "few", Topic: "t", Tenant: "few"}
	read := look([]*Message{few}, Reach{Highest: 1000, Covered: Everything, Horizon: 1, Ceiling: 9})
	if want := []Group{{"t", "many"}}; !slices.Equal(read.Groups, want) {
		t.Fatalf("read.Groups are %+v, want %+v", read.Groups, want)
	}
	if s.buffer.messages[1000] != few {
		t.Fatalf("s.buffer.messages[1000] is %p, want %p", s.buffer.messages[1000], few)
	}
	if s.buffer.ahead.ready.count != 1 {
		t.Fatalf("s.buffer.ahead.ready.count is %d, want 1: it takes turns with the others", s.buffer.ahead.ready.count)
	}
}

// Trap 100. A row can be committed late, below rows that a lookahead has examined. So
// the next lookaheads look again for earlier rows of each key among these rows, until
// all older transactions have ended.
func TestLookaheadLooksForLateCommitsOfItsKeys(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	examined := Reach{Highest: 500, Covered: 500, Horizon: 9, Ceiling: 12}
	look(nil, examined)
	s.Wrote(s.Sight()) // a transaction that began before the transactions of the late rows have ended
	open := Reach{Highest: 600, Covered: 600, Horizon: 9, Ceiling: 12}
	read := look(nil, open)
	if read.From != 500 {
		t.Fatalf("read.From is %d, want 500", read.From)
	}
	if read.Late >= 500 {
		t.Fatalf("read.Late is %d, want less than 500", read.Late)
	}
	read = look(nil, open)
	if read.Late >= 500 {
		t.Fatalf("read.Late is %d, want less than 500: a transaction is open that is older than the rows", read.Late)
	}
	ended := Reach{Highest: 600, Covered: 600, Horizon: 12, Ceiling: 12}
	look(nil, ended)
	// The cursor has now passed rows that were committed late, and no lookahead has
	// examined these rows.
	ended.Skipped = []Skipped{{Position: 490, KeyHash: 7}}
	if read = look(nil, ended); read.Late >= 500 || read.Passed != 500 {
		t.Fatalf("Late is %d and Passed is %d, want less than 500 and 500", read.Late, read.Passed)
	}
	ended.Skipped = nil
	later := &Message{Position: 601, ID: "later", Key: "k", KeyHash: 7, Topic: "t", Tenant: "few"}
	if read = look([]*Message{later}, ended); read.Late != 500 {
		t.Fatalf("Late is %d, want 500", read.Late)
	}
	if s.buffer.messages[601] != nil {
		t.Fatal("a message is in memory although an earlier one of its key was committed late")
	}
}

// Trap 100. If a lookahead has skipped a row with a key, the Scheduler must ignore later
// rows of this key that the next lookahead returns.
func TestLookaheadSkipsLaterRowsOfASkippedKey(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	skipped := Reach{Highest: 500, Covered: 500, Horizon: 1, Ceiling: 9, Skipped: []Skipped{{Position: 490, KeyHash: -7}}}
	look([]*Message{{Position: 480, ID: "before", Key: "k", KeyHash: -7, Topic: "t", Tenant: "few"}}, skipped)
	if s.buffer.messages[480] == nil {
		t.Fatal("s.buffer.messages[480] is nil")
	}
	look([]*Message{
		{Position: 510, ID: "after", Key: "k", KeyHash: -7, Topic: "t", Tenant: "few"},
		{Position: 511, ID: "other", Key: "l", KeyHash: 8, Topic: "t", Tenant: "few"},
	}, Reach{Highest: 511, Covered: Everything, Horizon: 1, Ceiling: 9})
	if s.buffer.messages[510] != nil {
		t.Fatalf("s.buffer.messages[510] is %+v, want nil", s.buffer.messages[510])
	}
	if s.buffer.messages[511] == nil {
		t.Fatal("s.buffer.messages[511] is nil")
	}
	s.Rescan()
	if s.lookahead.round.active() || s.lookahead.tail.active() {
		t.Fatal("a walk is active, want none: a new round begins")
	}
}

// Trap 100. Transaction ids go back when a replica that lagged behind becomes the
// primary. The new primary reuses positions that were examined. So lookaheads must begin
// again.
func TestLookaheadBeginsAnewWhenTransactionIDsGoBack(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	look(nil, Reach{Highest: 500, Covered: 500, Horizon: 9, Ceiling: 12})
	replica := Reach{Highest: 510, Covered: Everything, Horizon: 5, Ceiling: 6}
	look([]*Message{{Position: 510, ID: "behind", Topic: "t", Tenant: "few"}}, replica)
	if s.buffer.messages[510] != nil {
		t.Fatalf("s.buffer.messages[510] is %+v, want nil: rows below it were not examined", s.buffer.messages[510])
	}
	if got := look(nil, replica).From; got >= 500 {
		t.Fatalf("look(nil, replica).From is %d, want less than 500", got)
	}
}

// Trap 100. The messages that lookaheads have found use a quarter of the memory. They
// do not use the memory for sweeps, which read the backlog.
func TestLookaheadUsesAQuarterOfTheMemory(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	inMemory := s.buffer.count()
	quarter := s.buffer.limit / 4
	for found := 0; found < quarter; {
		position := int64(1000 + found)
		read := look(nil, Reach{Highest: position, Covered: position, Horizon: 1, Ceiling: 9})
		if want := min(s.config.BatchSize, quarter-found); read.Limit != want {
			t.Fatalf("read.Limit is %d, want %d", read.Limit, want)
		}
		var rows []*Message
		for range read.Limit {
			found++
			rows = append(rows, &Message{Position: int64(1000 + found), ID: strconv.Itoa(found), Topic: "t", Tenant: strconv.Itoa(found)})
		}
		look(rows, Reach{Highest: rows[len(rows)-1].Position, Covered: rows[len(rows)-1].Position, Horizon: 1, Ceiling: 9})
	}
	if s.buffer.ahead.messages != quarter {
		t.Fatalf("s.buffer.ahead.messages is %d, want %d", s.buffer.ahead.messages, quarter)
	}
	if got := s.buffer.count(); got != inMemory {
		t.Fatalf("s.buffer.count is %d, want %d", got, inMemory)
	}
	if got := s.planLookahead(s.lookahead.roundDue); got != nil {
		t.Fatalf("s.planLookahead(s.lookahead.roundDue) is %+v, want nil: a settlement makes room", got)
	}
}

// Trap 100. In the broker, a message waits behind the messages in flight. So fewer
// messages may be in flight after a lookahead has found a message.
func TestLookaheadThatFindsMessagesMakesTheWindowSmaller(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	s.config.Window = 16
	few := &Message{Position: 1000, ID: "few", Topic: "t", Tenant: "few"}
	look([]*Message{few}, Reach{Highest: 1000, Covered: Everything, Horizon: 1, Ceiling: 9})
	if got := s.window(s.lookahead.found); got != 2 {
		t.Fatalf("s.window(s.lookahead.found) is %d, want 2", got)
	}
	if got := s.window(s.lookahead.found.Add(6 * time.Second)); got != 16 {
		t.Fatalf("s.window is %d, want 16", got)
	}
}

// Trap 100. A row can be committed late, behind the tail. Lookaheads of the tail look
// for such a row until all older transactions have ended, but they reread only a few
// rows.
func TestTailFindsRowsThatWereCommittedLate(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	s.config.LookaheadRows = 10_000
	look(nil, Reach{Highest: 500, Covered: Everything, Horizon: 1, Ceiling: 9})
	late := &Message{Position: 490, ID: "late", Topic: "t", Tenant: "few"}
	if read := look([]*Message{late}, Reach{Highest: 500, Covered: Everything, Horizon: 1, Ceiling: 9}); read.From >= 490 {
		t.Fatalf("read.From is %d, want less than 490", read.From)
	}
	if s.buffer.messages[490] != late {
		t.Fatal("the row that was committed late is not in memory")
	}
	s.lookahead.roundDue = start.Add(time.Hour) // a round would reread nothing
	low := s.lookahead.tail.cursor.low
	for _, test := range []struct{ seen, want int64 }{{low + 1000, low}, {low + 1001, low + 1001}} {
		s.lookahead.tail.cursor.seen = test.seen
		read := look(nil, Reach{Covered: Everything, Horizon: 1, Ceiling: 9})
		if read.round || read.From != test.want {
			t.Fatalf("read.From is %d (read.round: %v), want %d: %d rows would be examined again", read.From, read.round, test.want, test.seen-low)
		}
	}
}

// Trap 100. New messages without a key do not wait for the end of the first round.
// Messages with a key do, because an earlier message of their key may be among the rows
// that were not examined yet.
func TestFirstRoundHasATailWithoutKeys(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	round := look(nil, Reach{Highest: 500, Covered: 500, End: 900, Horizon: 1, Ceiling: 9})
	free := &Message{Position: 901, ID: "free", Topic: "t", Tenant: "few"}
	keyed := &Message{Position: 902, ID: "keyed", Key: "k", KeyHash: 7, Topic: "t", Tenant: "few"}
	read := look([]*Message{free, keyed}, Reach{Highest: 902, Covered: Everything, End: 902, Horizon: 1, Ceiling: 9})
	if !round.round || read.round || read.From != 890 || read.Late != 890 || read.Passed != 890 {
		t.Fatalf("got %+v, want a lookahead of the tail from 890 on", read)
	}
	if s.buffer.messages[901] != free || s.buffer.messages[902] != nil {
		t.Fatalf("in memory are %p and %p, want only the message without a key", s.buffer.messages[901], s.buffer.messages[902])
	}
	for !read.round {
		read = look(nil, Reach{Highest: 902, Covered: Everything, End: 902, Horizon: 1, Ceiling: 9})
	}
	for read.round {
		read = look([]*Message{}, Reach{Highest: 902, Covered: Everything, End: 902, Horizon: 1, Ceiling: 9})
	}
	if s.lookahead.tail.keyless {
		t.Fatal("the tail is without keys after the end of the round")
	}
	look([]*Message{keyed}, Reach{Highest: 902, Covered: Everything, End: 902, Horizon: 1, Ceiling: 9})
	if s.buffer.messages[902] != keyed {
		t.Fatal("the message with a key is not in memory after the end of the round")
	}
}

// Trap 100. A lookahead leaves out the same keys and topics as sweeps. Otherwise it
// would read their rows again and again.
func TestLookaheadLeavesOutExcludedKeysAndTopics(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	s.buffer.queues["full"] = &keyQueue{key: "full", excluded: true}
	s.topics.get("stalled").stalled = true
	read := look(nil, Reach{Highest: 500, Covered: 500, Horizon: 1, Ceiling: 9})
	if !slices.Equal(read.Keys, []string{"full"}) || !slices.Equal(read.Topics, []string{"stalled"}) {
		t.Fatalf("it leaves out the keys %q and the topics %q, want full and stalled", read.Keys, read.Topics)
	}
}

// Trap 100. A lookahead that skips a row because of an earlier row of its key leaves this
// row to the next round, which then begins sooner.
func TestRowOfASkippedKeyWaitsForTheNextRound(t *testing.T) {
	t.Parallel()
	s, look := behind(t)
	look(nil, Reach{Highest: 500, Covered: 500, Horizon: 1, Ceiling: 9, Skipped: []Skipped{{Position: 490, KeyHash: 7}}})
	if s.lookahead.more {
		t.Fatal("nothing was left out, but rows wait for the next round")
	}
	row := &Message{Position: 510, ID: "after", Key: "k", KeyHash: 7, Topic: "t", Tenant: "few"}
	look([]*Message{row}, Reach{Highest: 510, Covered: 510, Horizon: 1, Ceiling: 9})
	if !s.lookahead.more {
		t.Error("a row was left out, but no row waits for the next round")
	}
}

// ahead returns the rows that the query of a lookahead in package forwarder would
// return.
func (w *world) ahead(r *Read) ([]*Message, Reach) {
	var above []*stored
	late := map[string]bool{}
	for _, row := range w.table {
		if row.Position > r.Late && row.Position <= r.From && !slices.Contains(r.Known, row.Position) {
			late[row.Key] = true
		}
		if row.Position > r.From {
			above = append(above, row)
		}
	}
	slices.SortFunc(above, func(a, b *stored) int { return cmp.Compare(a.Position, b.Position) })
	at := Reach{Covered: Everything}
	if len(above) > 0 {
		at.End = above[len(above)-1].Position
	}
	if len(above) >= r.Examine {
		above = above[:r.Examine]
		at.Covered = above[len(above)-1].Position
	}
	if len(above) > 0 {
		at.Highest = above[len(above)-1].Position
	}
	var found []*Message
	groups := map[Group]int{}
	size := 0
	for _, row := range above {
		hash := hashOf(row.Key)
		blocked := w.blocked[row.Key]
		switch {
		case slices.Contains(r.Known, row.Position):
			continue
		case row.Key != "" && late[row.Key]:
			at.More = true
		case r.Pauses.Include(row.Topic, row.Tenant):
		case !row.due.IsZero(), !slices.Contains(r.Slots, row.Slot), slices.Contains(r.Groups, row.group()):
		case row.Key == "" && slices.Contains(r.Topics, row.Topic), row.Key != "" && slices.Contains(r.Keys, row.Key):
		case blocked != nil && blocked.position != row.Position:
		case len(found) >= r.Limit || size >= r.Bytes || groups[row.group()] >= r.PerGroup:
			at.More = true
		default:
			groups[row.group()]++
			m := row.Message
			if blocked != nil {
				m.BlocksKey, m.SuccessorsAfter = true, blocked.successorsAfter
			}
			m.KeyHash, m.Payload = hash, make([]byte, len(row.Payload))
			size += m.Size()
			found = append(found, &m)
			continue
		}
		if row.Key != "" {
			at.Skipped = append(at.Skipped, Skipped{row.Position, hash})
		}
	}
	for _, row := range w.table {
		if row.Key != "" && row.Position > r.Late && row.Position <= r.Passed && !slices.Contains(r.Known, row.Position) {
			at.Skipped = append(at.Skipped, Skipped{row.Position, hashOf(row.Key)})
		}
	}
	w.foundAhead += len(found)
	return found, at
}

// hashOf returns a hash of a key. Some keys have the same hash.
func hashOf(key string) int64 {
	var hash int64
	for _, c := range key {
		hash = hash*31 + int64(c)
	}
	return hash % 13
}
