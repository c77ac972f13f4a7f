package parkedrows_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// crowd is a number of rows that is much larger than any claim.
const crowd = 5000

// fill inserts waiting rows of a tenant, which have been due for an hour.
func fill(t *testing.T, db kit.Database, class, tenant string, rows int) {
	t.Helper()
	fillEach(t, db, class, []string{tenant}, rows)
}

// fillEach is like fill for several tenants, in one transaction.
func fillEach(t *testing.T, db kit.Database, class string, tenants []string, rows int) {
	t.Helper()
	numbers, due := `generate_series(1, %d) AS n`, `now() - interval '1 hour'`
	if db.Dialect != "" && db.Dialect != "postgres" {
		numbers = `(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) SELECT n FROM s)`
		due = `CAST(unixepoch('subsec') * 1000 AS INTEGER) - 3600000`
	}
	envelope := parkedrows.Encode(message.NewMessage("filled", nil))
	kit.Exec(t, db, fmt.Sprintf(`
		INSERT INTO once_parked (consumer, topic, message_id, tenant, priority_class, digest, envelope, state, due_at)
		SELECT 'c', 't', '%[1]s-' || v.column1 || '-' || n, v.column1, '%[1]s', $1, $2, 'waiting', %[2]s FROM %[3]s, (VALUES ('%[4]s')) AS v`,
		class, due, fmt.Sprintf(numbers, rows), strings.Join(tenants, "'), ('")), []byte("digest"), envelope)
}

func of(tenant, id string) *message.Message {
	msg := message.NewMessage(id, nil)
	if tenant != "" {
		msg.Metadata.Set(meta.TenantID, tenant)
	}
	return msg
}

// rounds claims until it has claimed the wanted numbers of rows. It returns the number
// of claimed rows of each tenant and class.
func rounds(t *testing.T, s *parkedrows.Store, limit int, want map[parkedrows.TenantTurn]int) (got map[parkedrows.TenantTurn]int) {
	t.Helper()
	sel := selection
	sel.Limit, sel.Turns = limit, &parkedrows.TenantTurns{}
	got = map[parkedrows.TenantTurn]int{}
	for {
		claimed := claim(t, s, sel)
		var claims []*parkedrows.Claim
		for _, c := range claimed {
			got[c.Turn]++
			claims = append(claims, c.Claim)
		}
		if len(claims) == 0 {
			t.Fatalf("nothing is due after %v", got)
		}
		kit.OK(t, s.Resolve(t.Context(), claims...))
		done := true
		for turn, rows := range want {
			done = done && got[turn] >= rows
		}
		if done {
			return got
		}
	}
}

// One tenant has ten messages, and another tenant has thousands of older messages. When
// the ten messages have been claimed, only about ten messages of the other tenant have
// been claimed.
func TestTenantWithManyRowsDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for _, few := range []string{"", "a", "z"} {
			s := newStore(t, db)
			fill(t, db, "live", "many", crowd)
			for n := range 10 {
				kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, of(few, few+fmt.Sprint(n))))
			}
			live := parkedrows.TenantTurn{PriorityClass: "live", Tenant: few}
			got := rounds(t, s, 4, map[parkedrows.TenantTurn]int{live: 10})
			if many := got[parkedrows.TenantTurn{PriorityClass: "live", Tenant: "many"}]; many > 14 {
				t.Errorf("tenant %q was done after %d rows of the other", few, many)
			}
			kit.Exec(t, db, `DELETE FROM once_parked`)
		}
	})
}

// The turns are also fair in a process with few handlers, which claims one row at a
// time.
func TestTurnsWithLimitOne(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		fill(t, db, "live", "many", 100)
		fill(t, db, "live", "few", 5)
		fill(t, db, "live", "other", 5)
		got := rounds(t, s, 1, map[parkedrows.TenantTurn]int{{PriorityClass: "live", Tenant: "few"}: 5, {
			PriorityClass: "live",
			Tenant:        "other",
		}: 5})
		if many := got[parkedrows.TenantTurn{PriorityClass: "live", Tenant: "many"}]; many < 4 || many > 6 {
			t.Errorf("%v, want them to take turns", got)
		}
	})
}

// A large replay and many due retries get no more rows than the shares of their
// priority classes.
func TestPriorityClassesGetTheirShares(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		fill(t, db, "replay", "", crowd)
		fill(t, db, "retry", "", crowd)
		fill(t, db, "live", "", 400)
		live := parkedrows.TenantTurn{PriorityClass: "live"}
		got := rounds(t, s, 7, map[parkedrows.TenantTurn]int{live: 400})
		if got[parkedrows.TenantTurn{PriorityClass: "replay"}] != 100 || got[parkedrows.TenantTurn{PriorityClass: "retry"}] != 200 {
			t.Errorf("beside 400 live rows were claimed %v", got)
		}
	})
}

// Most retries are not due. A tenant with a due retry does not wait until a walk has
// visited all tenants, and does not wait behind a tenant with thousands of due retries.
func TestDueRetryIsFoundAmongManyTenants(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		var later []string
		for n := range 300 {
			later = append(later, fmt.Sprintf("later-%03d", n))
		}
		fillEach(t, db, "retry", later, 1)
		delay := s.Dialect().SQL(`UPDATE {parked} SET due_at = {after $1}`)
		kit.Exec(t, db, delay, time.Hour.Milliseconds())
		fill(t, db, "retry", "z", 10)
		sel := selection
		if claimed := claim(t, s, sel); len(claimed) != 10 {
			t.Fatalf("%d of the 10 that are due were claimed", len(claimed))
		}
		fill(t, db, "retry", "many", crowd)
		fill(t, db, "retry", "zz", 10)
		got := rounds(t, s, 4, map[parkedrows.TenantTurn]int{{PriorityClass: "retry", Tenant: "zz"}: 10})
		if many := got[parkedrows.TenantTurn{PriorityClass: "retry", Tenant: "many"}]; many > 150 { // five walks visit all tenants
			t.Errorf("the few were done after %d rows of the other", many)
		}
	})
}

// If there are more tenants than one call of Due examines, each tenant gets a turn.
func TestEachOfManyTenantsGetsATurn(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		const tenants = 500
		want := map[parkedrows.TenantTurn]int{}
		var names []string
		for n := range tenants {
			name := fmt.Sprintf("%03d", n)
			names = append(names, name)
			want[parkedrows.TenantTurn{PriorityClass: "live", Tenant: name}] = 3
		}
		fillEach(t, db, "live", names, 3)
		fill(t, db, "live", "250-many", crowd)
		got := rounds(t, s, 100, want)
		if many := got[parkedrows.TenantTurn{PriorityClass: "live", Tenant: "250-many"}]; many < 3 || many > 200 {
			t.Errorf("%d rows of the one with many, %d turns for each of the others", many, 3)
		}
	})
}

// One look visits 64 tenants at most. If it has visited 64, there may be more.
func TestLookAtManyTenantsIsPartial(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		partial := func() bool {
			due, err := s.Due(t.Context(), selection)
			kit.OK(t, err)
			return due.Partial()
		}
		names := make([]string, 64)
		for n := range names {
			names[n] = fmt.Sprintf("%03d", n)
		}
		fillEach(t, db, "live", names[:63], 1)
		if partial() {
			t.Error("with 63 tenants, the look was partial")
		}
		fillEach(t, db, "live", names[63:], 1)
		if !partial() {
			t.Error("with 64 tenants, the look was not partial")
		}
	})
}

// If a claim of several tenants fails, it claims no row, and no tenant loses its turn.
func TestFailedClaimOfSeveralTenantsClaimsNothing(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		fillEach(t, db, "live", []string{"a", "b"}, 1)
		refuse, accept := []string{
			`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`,
			`CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW EXECUTE FUNCTION refuse()`,
		}, `DROP TRIGGER refuse ON once_parked`
		if db.Dialect == "sqlite" {
			refuse, accept = []string{`CREATE TRIGGER refuse BEFORE UPDATE ON once_parked BEGIN SELECT RAISE(ABORT, 'refused'); END`},
				`DROP TRIGGER refuse`
		}
		exec := func(statements ...string) {
			t.Helper()
			for _, statement := range statements {
				kit.Exec(t, db, statement)
			}
		}
		exec(refuse...)
		sel := selection
		sel.Turns = new(parkedrows.TenantTurns)
		claimed, err := s.Claim(t.Context(), sel)
		if err == nil || !strings.Contains(err.Error(), "refused") || len(claimed) > 0 {
			t.Fatalf("%d rows and %v, want the error of the trigger", len(claimed), err)
		}
		if !reflect.DeepEqual(sel.Turns, new(parkedrows.TenantTurns)) {
			t.Errorf("turns are %+v after a claim that failed", *sel.Turns)
		}
		exec(accept)
		if claimed := claim(t, s, sel); len(claimed) != 2 {
			t.Errorf("%d rows were claimed, want 2", len(claimed))
		}
	})
}

// If a tenant has fewer rows than its share, the claim takes more rows of other
// tenants.
func TestUnusedSharesGoToOtherTenants(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		fill(t, db, "live", "many", 1000)
		fill(t, db, "live", "few", 2)
		fill(t, db, "replay", "few", 1)
		if claimed := claim(t, s, selection); len(claimed) != selection.Limit {
			t.Errorf("%d rows were claimed, want %d", len(claimed), selection.Limit)
		}
	})
}

func TestPriorityClassOfARow(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		class := func(id string) (class string) {
			t.Helper()
			kit.OK(t, db.QueryRowContext(t.Context(), `SELECT priority_class FROM once_parked WHERE message_id = $1`, id).Scan(&class))
			return class
		}
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		failure := parkedrows.Failure{Err: errHandler, Reason: "exhausted"}
		deliver(t, s, "stored", "postponed", "released", "paused")
		for id, delay := range map[string]time.Duration{"redelivered": 0, "failed": time.Hour} {
			kit.OK(t, s.Park(t.Context(), d, of("", id), failure, delay))
		}
		for _, c := range claim(t, s, selection) {
			var err error
			switch c.Message.UUID {
			case "postponed":
				err = s.Postpone(t.Context(), "c", c.Claim, failure, time.Minute)
			case "released":
				err = s.Release(t.Context(), c.Claim, 0)
			case "paused":
				err = s.Release(t.Context(), c.Claim, time.Minute)
			}
			kit.OK(t, err)
		}
		for id, want := range map[string]string{
			"stored": "live", "redelivered": "live", "released": "live",
			"failed": "retry", "postponed": "retry", "paused": "retry",
		} {
			if got := class(id); got != want {
				t.Errorf("%s waits in %s, not %s", id, got, want)
			}
		}
	})
}

// Tenant names are user input, so they are cleaned and shortened.
func TestTenantNamesAreCleaned(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		names := []string{"", "\x00", "a\xffb", `quote " and \ and '`, "{a,b}", "ünïcode 🐇", strings.Repeat("long", 1000)}
		for n, name := range names {
			kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, of(name, fmt.Sprint(n))))
		}
		if claimed := claim(t, s, selection); len(claimed) != len(names) {
			t.Errorf("%d of %d were claimed", len(claimed), len(names))
		}
	})
}

// Trap 122. However many processes claim at the same time, a tenant has no more claimed rows than it
// may have, and the rows of others are claimed in its place. Rows that were claimed when a process
// died count, and are claimed again before other rows of their tenant.
func TestTenantHasFewClaimedRows(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		fill(t, db, "live", "large", 100)
		fill(t, db, "retry", "large", 100)
		fill(t, db, "live", "", 6)
		for n := range 5 {
			fill(t, db, "live", fmt.Sprint("small-", n), 1)
		}
		sel := selection
		sel.Limit, sel.PerTenant = 20, 2
		all := make(chan []parkedrows.Claimed)
		const processes = 4
		for range processes {
			go func() {
				var claimed []parkedrows.Claimed
				for range 3 {
					mine := sel
					mine.Turns = &parkedrows.TenantTurns{}
					more, err := s.Claim(t.Context(), mine)
					if err != nil {
						t.Error(err)
					}
					claimed = append(claimed, more...)
				}
				all <- claimed
			}()
		}
		of := map[string][]*parkedrows.Claim{}
		for range processes {
			for _, c := range <-all {
				of[c.Turn.Tenant] = append(of[c.Turn.Tenant], c.Claim)
			}
		}
		want := map[string]int{"large": 2, "": 6, "small-0": 1, "small-1": 1, "small-2": 1, "small-3": 1, "small-4": 1}
		for tenant, n := range want {
			if len(of[tenant]) != n {
				t.Errorf("%d rows of tenant %q are claimed, want %d", len(of[tenant]), tenant, n)
			}
		}
		if len(of) != len(want) {
			t.Errorf("rows of %d tenants are claimed, want %d", len(of), len(want))
		}

		if err := s.Resolve(t.Context(), of["large"][0]); err != nil {
			t.Fatal(err)
		}
		due := `now() - interval '1 second'`
		if db.Dialect == "sqlite" {
			due = `due_at - 3600000000`
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE once_parked SET due_at = `+due+` WHERE tenant = 'large' AND crashes > 0`); err != nil {
			t.Fatal(err) // its process has died, and its lease has ended
		}
		sel.Limit, sel.Turns = 1, &parkedrows.TenantTurns{}
		for _, next := range []struct {
			crashed bool
			want    int
		}{{false, 1}, {false, 0}, {true, 1}, {true, 0}, {false, 0}} {
			sel.Crashed = next.crashed
			if got := claim(t, s, sel); len(got) != next.want || next.want > 0 && (got[0].Crashes > 1) != next.crashed {
				t.Errorf("%d rows are claimed, want %d with crashed=%v: %+v", len(got), next.want, next.crashed, got)
			}
		}
	})
}
