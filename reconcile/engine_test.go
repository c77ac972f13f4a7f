package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// memory is a side in memory. It maps each id to the times of its rows.
type memory map[string][]int64

func (m memory) scan(_ context.Context, w window, _ []span, _ bool, each func(*record) error) error {
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

// timed returns a UUID of version 7 that contains the time in the parameter at.
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

// exchange compares the ids of two sides. It encodes and decodes each question and each
// answer. It returns the differences, the number of answers, and the number of bytes of
// all questions and answers.
func exchange(t testing.TB, sent, handled source, w window, limit int) (found outcome, rounds, size int, err error) {
	t.Helper()
	ctx := t.Context()
	question, err := summarize(ctx, sent, w)
	if err != nil {
		t.Fatal(err)
	}
	for rounds = 1; ; rounds++ {
		if rounds >= mostRounds {
			t.Fatalf("rounds is %d, want less than %d", rounds, mostRounds)
		}
		encoded := encodeTree(question)
		size += len(encoded)
		question, err = decodeTree(encoded)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := respond(ctx, handled, w, question, rounds == 1, limits{listAtOnce, limit})
		if err != nil {
			return outcome{}, rounds, size, err
		}
		if answer.groups == nil {
			encoded = encodeLists(answer.lists)
			size += len(encoded)
			lists, err := decodeLists(encoded)
			if err != nil {
				t.Fatal(err)
			}
			found, err = settle(ctx, sent, w, lists, limit)
			return found, rounds, size, err
		}
		encoded = encodeTree(answer.groups)
		size += len(encoded)
		groups, err := decodeTree(encoded)
		if err != nil {
			t.Fatal(err)
		}
		question, err = ask(ctx, sent, w, groups)
		if err != nil {
			t.Fatal(err)
		}
	}
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
		all = append(all, e.id)
	}
	return all
}

// check calls the function exchange, and compares its result with the differences
// between the parameters sent and handled.
func check(t testing.TB, sent, handled memory, rounds, size int) {
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
	found, took, bytes, err := exchange(t, sent, handled, day, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(found.missing); !reflect.DeepEqual(got, missing) {
		t.Fatalf("ids(found.missing) is %q, want %q", got, missing)
	}
	if got := idsOf(found.phantoms); !reflect.DeepEqual(got, phantoms) {
		t.Fatalf("idsOf(found.phantoms) is %q, want %q", got, phantoms)
	}
	if rounds > 0 {
		if took > rounds {
			t.Fatalf("took is %d, want at most %d", took, rounds)
		}
	}
	if size > 0 {
		if bytes > size {
			t.Fatalf("bytes is %d, want at most %d", bytes, size)
		}
	}
}

func TestDifferencesAreFoundExactly(t *testing.T) {
	spread := func(n uint64) string { return timed(day.from.Add(time.Duration(n)*4320*time.Millisecond), n) } // 20,000 of these ids fill a day
	burst := func(n uint64) string { return timed(noon, n) }
	odd := func(n uint64) string { return fmt.Sprintf("order-%d/Ünï", n) }
	for _, c := range []struct {
		name         string
		id           func(n uint64) string
		n            uint64
		rounds, size int // maximum numbers of rounds and bytes
	}{
		{"none", spread, 0, 1, 0},
		{"few", spread, 10, 2, 2000},
		{"one a second", spread, 20_000, 1, 40_000},
		{"all in one minute", burst, 20_000, 1, 100_000},
		{"without times", untimed, 20_000, 1, 100_000},
		{"no UUIDs", odd, 20_000, 1, 100_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent, handled := memory{}, memory{}
			for n := range c.n {
				sent.add(c.id(n))
				handled.add(c.id(n))
			}
			check(t, sent, handled, c.rounds, c.size)
			for n := range min(c.n, 5) {
				delete(handled, c.id(n*c.n/7))
			}
			for n := range uint64(3) {
				handled.add(timed(noon.Add(time.Duration(n)*time.Hour), n), untimed(c.n+n))
			}
			check(t, sent, handled, c.rounds, c.size)
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
	check(t, sent, handled, 1, 40_000)
}

func TestManyScatteredDifferencesTakeMoreRounds(t *testing.T) {
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
	check(t, sent, handled, 5, 3_000_000)
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
		check(t, sent, handled, 0, 0)
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
	found, _, _, err := exchange(t, sent, handled, day, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ids(found.missing), []string{"gone"}; !slices.Equal(got, want) {
		t.Fatalf("ids(found.missing) is %q, want %q", got, want)
	}
	if got, want := idsOf(found.phantoms), []string{"new"}; !slices.Equal(got, want) {
		t.Fatalf("idsOf(found.phantoms) is %q, want %q", got, want)
	}
}

func TestTimesOutsideOfTheWindowAreNotCompared(t *testing.T) {
	sent, handled := memory{}, memory{}
	sent.add(timed(day.from.Add(-time.Millisecond), 1), timed(day.until, 2), timed(day.from, 3))
	handled.add(timed(day.from.Add(-time.Millisecond), 4), timed(day.until, 5), timed(day.until.Add(-time.Millisecond), 6))
	found, _, _, err := exchange(t, sent, handled, day, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ids(found.missing), []string{timed(day.from, 3)}; !slices.Equal(got, want) {
		t.Fatalf("ids(found.missing) is %q, want %q", got, want)
	}
	if got, want := idsOf(found.phantoms), []string{timed(day.until.Add(-time.Millisecond), 6)}; !slices.Equal(got, want) {
		t.Fatalf("idsOf(found.phantoms) is %q, want %q", got, want)
	}
}

func TestSidesThatDoNotBelongTogetherAreRefused(t *testing.T) {
	sent, handled := memory{}, memory{}
	for n := range uint64(15_000) {
		sent.add(untimed(n))
		handled.add(untimed(n + 15_000))
	}
	for _, other := range []memory{handled, {}} {
		found, _, _, err := exchange(t, sent, other, day, 10_000)
		if !errors.Is(err, ErrTooDifferent) {
			t.Fatalf("got %v, want ErrTooDifferent", err)
		}
		if len(found.missing) != 0 {
			t.Fatalf("found.missing is %+v, want none", found.missing)
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

// Impossible lists are refused, because an id in the wrong place would be compared with
// the wrong ids.
func TestImpossibleListsAreDamaged(t *testing.T) {
	k := keyOf([]byte("x"))
	deep := node{k.cell, 8, first(k.path, 8)}
	for name, l := range map[string]list{
		"another minute":  {node{cell: 7}, []entry{{"x", Handled, 1}}},
		"another branch":  {node{k.cell, 8, first(k.path, 8) ^ 1}, []entry{{"x", Handled, 1}}},
		"another state":   {deep, []entry{{"x", states, 1}}},
		"a path too long": {node{k.cell, 8, 256}, nil},
	} {
		if _, err := decodeLists(encodeLists([]list{l})); !errors.Is(err, errDamaged) {
			t.Fatalf("%s: decodeLists: got %v, want errDamaged", name, err)
		}
	}
	_, err := decodeLists(encodeLists([]list{{deep, nil}, {deep, nil}}))
	if !errors.Is(err, errDamaged) {
		t.Fatalf("got %v, want errDamaged", err)
	}
	if _, err := decodeLists(encodeLists([]list{{deep, []entry{{"x", Handled, 1}}}})); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecode(f *testing.F) {
	t := summary{newTree()}
	for n := range uint64(1000) {
		t.add(keyOf([]byte(timed(noon, n))))
	}
	f.Add(encodeTree(t.fold()))
	k := keyOf([]byte("x"))
	f.Add(encodeLists([]list{{node{cell: k.cell}, []entry{{"x", Waiting, 1}, {untimed(1), Handled, 2}}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if decoded, err := decodeTree(data); err == nil {
			again, err := decodeTree(encodeTree(decoded))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := encodeTree(again), encodeTree(decoded); !reflect.DeepEqual(got, want) {
				t.Fatalf("encodeTree(again) is %q, want %q", got, want)
			}
		}
		if lists, err := decodeLists(data); err == nil {
			again, err := decodeLists(encodeLists(lists))
			if err != nil {
				t.Fatal(err)
			}
			if len(again) != len(lists) {
				t.Fatalf("len(again) is %d, want %d: %+v", len(again), len(lists), again)
			}
		}
	})
}
