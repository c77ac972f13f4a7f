package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// memory is a side in memory. It maps each id to the times of its rows.
type memory map[string][]int64

func (m memory) scan(_ context.Context, w window, _ differing, each func(*record) error) error {
	for id, times := range m {
		r := record{id: []byte(id), firstAt: slices.Min(times), lastAt: slices.Max(times)}
		r.in = slices.ContainsFunc(times, w.contains)
		if err := each(&r); err != nil {
			return err
		}
	}
	return nil
}

func (m memory) add(ids ...string) {
	for _, id := range ids {
		m[id] = append(m[id], noon.UnixMilli())
	}
}

var (
	noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	day  = window{noon.Add(-12 * time.Hour), noon.Add(12 * time.Hour)}
)

// timed returns a UUID of version 7 that contains the time in at.
func timed(at time.Time, n uint64) string {
	digits := fmt.Sprintf("%012x", at.UnixMilli())
	noise := rand.New(rand.NewPCG(n, 1)).Uint64()
	return fmt.Sprintf("%s-%s-7%03x-8%03x-%012x", digits[:8], digits[8:], n%4096, noise>>52, noise&(1<<48-1))
}

// untimed returns a UUID of version 4.
func untimed(n uint64) string {
	r := rand.New(rand.NewPCG(n, 2))
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.Uint32()&0xffff, r.Uint32()&0xfff, r.Uint32()&0xfff, r.Uint64()&(1<<48-1))
}

// exchange compares the ids of two sides by a question and an answer. It returns the
// differences, and the number of bytes of both files.
func exchange(t testing.TB, sent, handled source, limit int) (lost []record, unsent []entry, size int, err error) {
	t.Helper()
	d := digest{}
	kit.OK(t, count(t.Context(), sent, day, d, widest, widestNoTime))
	d.fold()
	file, err := encodeFile(questionKind, questionBody{Sums: d.encode()})
	kit.OK(t, err)
	size = len(file)
	var q questionBody
	kit.OK(t, decodeFile(file, questionKind, &q))
	theirs, err := decodeDigest(q.Sums)
	kit.OK(t, err)
	a := answerBody{Consumers: make([]section, 1)}
	if err := respond(t.Context(), handled, day, theirs, limit, &a.Consumers[0]); err != nil {
		return nil, nil, 0, err
	}
	file, err = encodeFile(answerKind, a)
	kit.OK(t, err)
	size += len(file)
	kit.OK(t, decodeFile(file, answerKind, &a))
	kit.OK(t, a.Consumers[0].check())
	lost, unsent, err = settle(t.Context(), sent, day, a.Consumers[0], limit)
	return lost, unsent, size, err
}

func ids(records []record) (all []string) {
	for _, r := range records {
		all = append(all, string(r.id))
	}
	slices.Sort(all)
	return all
}

func idsOf(entries []entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.ID)
	}
	return all
}

// check calls the function exchange, and compares its result with the differences
// between sent and handled. size is the maximum number of bytes, or 0.
func check(t testing.TB, sent, handled memory, size int) {
	t.Helper()
	var missing, phantoms []string
	for id := range sent {
		if handled[id] == nil {
			missing = append(missing, id)
		}
	}
	for id := range handled {
		if sent[id] == nil {
			phantoms = append(phantoms, id)
		}
	}
	slices.Sort(missing)
	slices.Sort(phantoms)
	lost, unsent, bytes, err := exchange(t, sent, handled, 1_000_000)
	kit.OK(t, err)
	if got := ids(lost); !reflect.DeepEqual(got, missing) {
		t.Fatalf("lost are %q, want %q", got, missing)
	}
	if got := idsOf(unsent); !reflect.DeepEqual(got, phantoms) {
		t.Fatalf("unsent are %q, want %q", got, phantoms)
	}
	if size > 0 && bytes > size {
		t.Fatalf("%d bytes, want at most %d", bytes, size)
	}
}

func TestDifferencesAreFoundExactly(t *testing.T) {
	spread := func(n uint64) string { return timed(day.from.Add(time.Duration(n)*4320*time.Millisecond), n) } // 20,000 of these ids fill a day
	burst := func(n uint64) string { return timed(noon, n) }
	odd := func(n uint64) string { return fmt.Sprintf("order-%d/Ünï", n) }
	for _, c := range []struct {
		name string
		id   func(n uint64) string
		n    uint64
		size int // maximum number of bytes
	}{
		{"none", spread, 0, 0},
		{"few", spread, 10, 2500},
		{"one a second", spread, 20_000, 60_000},
		{"all in one minute", burst, 20_000, 300_000},
		{"without times", untimed, 20_000, 300_000},
		{"no UUIDs", odd, 20_000, 300_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent, handled := memory{}, memory{}
			for n := range c.n {
				sent.add(c.id(n))
				handled.add(c.id(n))
			}
			check(t, sent, handled, c.size)
			for n := range min(c.n, 5) {
				delete(handled, c.id(n*c.n/7))
			}
			for n := range uint64(3) {
				handled.add(timed(noon.Add(time.Duration(n)*time.Hour), n), untimed(c.n+n))
			}
			check(t, sent, handled, c.size)
		})
	}
}

// Messages that are lost at the same time are found with little data, even if there are
// many of them.
func TestAnHourThatIsMissingIsCheap(t *testing.T) {
	sent, handled := memory{}, memory{}
	for n := range uint64(50_000) {
		id := timed(day.from.Add(time.Duration(n)*1728*time.Millisecond), n)
		sent.add(id)
		if n < 12_000 || n > 15_000 {
			handled.add(id)
		}
	}
	check(t, sent, handled, 60_000)
}

func TestManyScatteredDifferencesAreFound(t *testing.T) {
	sent, handled := memory{}, memory{}
	for n := range uint64(50_000) {
		id := timed(day.from.Add(time.Duration(n)*1728*time.Millisecond), n)
		if n%50 != 7 {
			sent.add(id)
		}
		if n%50 != 9 {
			handled.add(id)
		}
	}
	check(t, sent, handled, 6_000_000)
}

func TestRandomSets(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		sent, handled := memory{}, memory{}
		n := r.Uint64N(3000)
		lossy := r.Float64()
		for i := range n {
			var id string
			switch r.Uint32N(3) {
			case 0:
				id = timed(day.from.Add(time.Duration(r.Int64N(int64(24*time.Hour)))), i)
			case 1:
				id = untimed(i)
			case 2:
				id = fmt.Sprint("n", i)
			}
			if r.Float64() > lossy*0.1 {
				sent.add(id)
			}
			if r.Float64() > lossy*0.2 {
				handled.add(id)
			}
		}
		check(t, sent, handled, 0)
	}
}

// The consumer lists ids of all times, not only of the window. So an id is not reported
// if its row is in the window on one side, and outside of the window on the other side.
func TestIDsWithoutTimeThatCrossTheEdgeAreNoDifference(t *testing.T) {
	sent, handled := memory{}, memory{}
	before, after := day.from.Add(-time.Second).UnixMilli(), day.from.Add(time.Second).UnixMilli()
	sent["handled later"], handled["handled later"] = []int64{before}, []int64{after}
	sent["sent again"], handled["sent again"] = []int64{before, after}, []int64{before}
	last, late := day.until.Add(-time.Second).UnixMilli(), day.until.Add(time.Second).UnixMilli()
	sent["at the end"], handled["at the end"] = []int64{last}, []int64{late}
	sent["never compared"], handled["never compared either"] = []int64{before}, []int64{late}
	sent["gone"] = []int64{after}
	handled["new"] = []int64{last}
	lost, unsent, _, err := exchange(t, sent, handled, 10)
	kit.OK(t, err)
	if got, want := ids(lost), []string{"gone"}; !slices.Equal(got, want) {
		t.Fatalf("ids(lost) is %q, want %q", got, want)
	}
	if got, want := idsOf(unsent), []string{"new"}; !slices.Equal(got, want) {
		t.Fatalf("idsOf(unsent) is %q, want %q", got, want)
	}
}

func TestTimesOutsideOfTheWindowAreNotCompared(t *testing.T) {
	sent, handled := memory{}, memory{}
	sent.add(timed(day.from.Add(-time.Millisecond), 1), timed(day.until, 2), timed(day.from, 3))
	handled.add(timed(day.from.Add(-time.Millisecond), 4), timed(day.until, 5), timed(day.until.Add(-time.Millisecond), 6))
	lost, unsent, _, err := exchange(t, sent, handled, 10)
	kit.OK(t, err)
	if got, want := ids(lost), []string{timed(day.from, 3)}; !slices.Equal(got, want) {
		t.Fatalf("ids(lost) is %q, want %q", got, want)
	}
	if got, want := idsOf(unsent), []string{timed(day.until.Add(-time.Millisecond), 6)}; !slices.Equal(got, want) {
		t.Fatalf("idsOf(unsent) is %q, want %q", got, want)
	}
}

func TestSidesThatDoNotBelongTogetherAreRefused(t *testing.T) {
	sent, handled := memory{}, memory{}
	for n := range uint64(15_000) {
		sent.add(untimed(n))
		handled.add(untimed(n + 15_000))
	}
	for _, other := range []memory{handled, {}} {
		if _, _, _, err := exchange(t, sent, other, 10_000); !errors.Is(err, ErrTooDifferent) {
			t.Fatalf("got %v, want ErrTooDifferent", err)
		}
	}
}

func TestOnlyUsualUUIDsOfVersion7HaveATime(t *testing.T) {
	for id, want := range map[string]int64{
		"019e6d5b-7c00-7abc-8def-001122334455":  0x019e6d5b7c00,
		"019e6d5b-7c00-4abc-8def-001122334455":  -1,
		"019E6D5B-7C00-7ABC-8DEF-001122334455":  -1,
		"019e6d5b-7c00-7abc-8def-00112233445":   -1,
		"019e6d5b-7c00-7abc-8def-0011223344556": -1,
		"019e6d5b+7c00-7abc-8def-001122334455":  -1,
		"":                                      -1,
	} {
		got, ok := timeOf([]byte(id))
		if !ok {
			got = -1
		}
		if got != want {
			t.Fatalf("%s: got %d, want %d", id, got, want)
		}
	}
}

// Impossible files are refused, because an id in the wrong part would be compared with
// the wrong ids.
func TestImpossiblePartsAreDamaged(t *testing.T) {
	k := keyOf([]byte("x"))
	part := k.part(4)
	right, x := differing{noTime: "0000"[:part] + "1" + "0000"[part+1:]}, []entry{{"x", "handled", 1}}
	kit.OK(t, (section{Differ: right, IDs: x}).check())
	for name, s := range map[string]section{
		"another minute":  {Differ: differing{7: "1"}, IDs: x},
		"another part":    {Differ: differing{noTime: "1111"[:part] + "0" + "1111"[part+1:]}, IDs: x},
		"another state":   {Differ: right, IDs: []entry{{"x", "lost", 1}}},
		"no power of two": {Differ: differing{noTime: "111"}},
		"too many parts":  {Differ: differing{noTime: strings.Repeat("1", 2*widestNoTime)}},
		"no minute":       {Differ: differing{-2: "1"}},
		"nothing":         {Differ: differing{7: ""}},
	} {
		if err := s.check(); !errors.Is(err, ErrFile) {
			t.Errorf("%s: got %v, want ErrFile", name, err)
		}
	}
	for name, sums := range map[string]map[int64][]byte{
		"half a checksum": {7: make([]byte, 12)}, "none": {7: {}}, "three": {7: make([]byte, 24)},
		"a late minute": {lastMinute + 1: make([]byte, 8)},
	} {
		if _, err := decodeDigest(sums); !errors.Is(err, ErrFile) {
			t.Errorf("%s: got %v, want ErrFile", name, err)
		}
	}
}

// A consumer lists at most as many ids as the limit says.
func TestAnswerHasALimitedNumberOfIDs(t *testing.T) {
	t.Parallel()
	handled := memory{}
	handled.add("a", "b", "c")
	var sec section
	if err := respond(t.Context(), handled, day, digest{}, 3, &sec); err != nil || len(sec.IDs) != 3 {
		t.Errorf("%d ids, %v; want 3", len(sec.IDs), err)
	}
	if err := respond(t.Context(), handled, day, digest{}, 2, &section{}); !errors.Is(err, ErrTooDifferent) {
		t.Errorf("got %v, want ErrTooDifferent", err)
	}
}

// However many ids there are, a question has about mostParts checksums, and a query
// reads at most 50 ranges of minutes.
func TestVeryManyIDsShareParts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1000: 1 << 1, 100_000_000: 1 << 15} {
		d := digest{noTime: {n, make([]uint64, widestNoTime)}}
		if d.fold(); len(d[noTime].sums) != want {
			t.Errorf("%d ids have %d parts, want %d", n, len(d[noTime].sums), want)
		}
	}
	d := differing{}
	for n := int64(1); n <= 50; n++ {
		d[10*n] = "1"
	}
	if ranges := d.minutes(); len(ranges) != 50 || ranges[49] != [2]int64{500, 501} {
		t.Errorf("the ranges are %v, want one for each minute", ranges)
	}
	d[700] = "1"
	if ranges := d.minutes(); len(ranges) != 1 || ranges[0] != [2]int64{10, 701} {
		t.Errorf("the ranges are %v, want a single one", ranges)
	}
}

func FuzzFiles(f *testing.F) {
	d := digest{}
	d.add(keyOf([]byte(timed(noon, 1))), widest)
	for kind, body := range map[string]any{
		questionKind: questionBody{Sums: d.encode()},
		answerKind:   answerBody{Consumers: []section{{Differ: differing{noTime: "1"}, IDs: []entry{{"x", "waiting", 1}}}}},
	} {
		body, err := json.Marshal(body)
		kit.OK(f, err)
		f.Add(kind, body)
	}
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		file, err := encodeFile(kind, json.RawMessage(body))
		if err != nil {
			return
		}
		var q questionBody
		if err := decodeFile(file, questionKind, &q); err == nil {
			_, _ = decodeDigest(q.Sums)
		}
		var a answerBody
		if err := decodeFile(file, answerKind, &a); err == nil {
			for _, s := range a.Consumers {
				_ = s.check()
			}
		}
	})
}

// A consumer does not list the ids of minutes that it may have forgotten.
func TestForgottenMinutesAreLeftOut(t *testing.T) {
	t.Parallel()
	sent := memory{}
	sent.add(timed(noon.Add(-time.Hour), 1), timed(noon.Add(time.Hour), 2))
	theirs := digest{}
	kit.OK(t, count(t.Context(), sent, day, theirs, 1, 1))
	var sec section
	kit.OK(t, respond(t.Context(), memory{}, window{noon, day.until}, theirs, 10, &sec))
	if got, want := len(sec.Differ), 1; got != want || sec.Differ[noon.Add(time.Hour).UnixMilli()/minuteMillis] == "" {
		t.Errorf("the parts %v differ, want only those of the minute that the consumer remembers", sec.Differ)
	}
}
