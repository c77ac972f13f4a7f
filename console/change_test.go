package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
)

func TestEachChangeIsMadeAndAudited(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		later := "due_at > " + (&kit.Bench{Database: db}).FromNow(time.Minute)
		for _, c := range []struct{ query, table, where string }{
			{"do=retry&all=1", "once_outbox", "message_id = 'refused-1' AND " + later},
			{"do=retry&state=delayed", "once_outbox", "message_id = 'later-1' AND " + later},
			{"do=cancel&id=4", "once_outbox", "message_id = 'later-1'"},
			{"do=pause&topic=mails", "(SELECT 1) AS one", "NOT EXISTS (SELECT 1 FROM once_pauses WHERE name = 'mails')"},
			{"do=resume&tenant=globex", "once_pauses", "kind = 'tenant' AND name = 'globex'"},
			{"do=release&key=customer-9", "once_blocked_keys", "ordering_key = 'customer-9'"},
			{"do=replay-dead&topic=orders.placed&reason=exhausted", "once_outbox_dead", "message_id = 'dead-1'"},
			{"do=discard-dead&id=2", "once_outbox_dead", "message_id = 'dead-2'"},
			{"do=replay-sent&id=1", "once_outbox", "message_id = 'none'"},
			{"do=run-parked&consumer=mail", "once_parked", "message_id = 'parked-1' AND " + later},
			{"do=cancel-parked&id=6", "once_parked", "message_id = 'parked-2' AND state = 'held'"},
			{"do=discard-parked&id=5", "once_parked", "message_id = 'parked-1' AND state = 'waiting'"},
			{"do=pause-consumer&consumer=mail", "(SELECT 1) AS one", "NOT EXISTS (SELECT 1 FROM once_consumer_pauses WHERE consumer = 'mail')"},
			{"do=resume-consumer&consumer=shipping", "once_consumer_pauses", "consumer = 'shipping'"},
			{"do=discard&consumer=shipping", "once_parked", "message_id = 'binary' AND state = 'quarantined'"},
		} {
			b := sharedBench(t, db)
			why := "because of " + c.query
			a := b.change(c.query, why)
			if a.StatusCode != http.StatusOK {
				t.Errorf("%s: a.StatusCode is %d, want %d", c.query, a.StatusCode, http.StatusOK)
			}
			if !strings.Contains(a.text, "1 of 1") {
				t.Errorf("%q is missing: %s\n%s:\n%s", "1 of 1", c.query, strings.Join(b.logs.Lines(), "\n"), a.text)
			}
			if !strings.Contains(a.text, "because of") {
				t.Errorf("%s: %q is missing:\n%s", c.query, "because of", a.text)
			}
			if got := b.Count(c.table + " WHERE " + c.where); got != 0 {
				t.Errorf("%s: b.Count is %d, want 0", c.query, got)
			}
			audits := strings.Join(b.Audits(), "\n")
			if want := "ann | [a-z_. -]+ | [^|]+ | ([a-z]+ | )?[a-z0-9:-]* | " + why; !regexp.MustCompile(
				strings.ReplaceAll(want, " | ", ` \| `)).MatchString(audits) {
				t.Errorf("%s: %s does not match %s", c.query, audits, want)
			}
		}
	})
}

// An operator can hold the breaker of a consumer open, so that it does not resume the consumer.
func TestPauseReplacesOpenBreaker(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	b.Exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, probe_at)
		SELECT topic, consumer, 'breaker', '5 of 5', registered_at FROM once_consumers WHERE consumer = 'mail'`)
	page := unescape(b.get("consumers").text)
	says(t, page, "consumer=mail&do=pause-consumer", "consumer=mail&do=resume-consumer")
	hides(t, page, "consumer=shipping&do=pause-consumer") // an operator has paused it
	says(t, b.change("do=pause-consumer&consumer=mail", "until noon").text, "1 of 1")
	if got := b.Count("once_consumer_pauses WHERE consumer = 'mail' AND actor = 'ann' AND probe_at IS NULL"); got != 1 {
		t.Errorf("%d pauses of ann, want 1", got)
	}
	says(t, b.get("change?do=pause-consumer&consumer=mail").text, "Nothing.")
}

// Many earlier letters of a key do not hide the one that blocks it.
func TestReleaseFindsTheBlockedKeyBehindManyLetters(t *testing.T) {
	b := quickBench(t, nil)
	b.Exec(`WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 101)
		INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error,
			reason, unknown)
		SELECT n, 'm' || n, 'orders.placed', 'k', '', '{}', 0, 1, 'e', 'exhausted', 0 FROM numbers`)
	b.Exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
		VALUES ('k', 101, 101, 'dead'), ('r', 7, 7, 'refused')`)
	says(t, b.change("do=release&key=k", "the order was void").text, "1 of 1")
	if got := b.Count("once_blocked_keys WHERE ordering_key = 'k' AND reason = 'dead'"); got != 0 {
		t.Error("the key is still blocked")
	}
	says(t, b.get("change?do=release&key=r").text, "Nothing.") // no dead letter blocks it
}

// sharedBench returns the bench of a database, which is filled at the first call.
func sharedBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	b := benchIn(t, db, nil)
	if b.Count("once_outbox_dead")+b.Count("once_audit") == 0 {
		b.seed()
	}
	return b
}

func TestEveryChangeNeedsAReason(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	for query := range acts {
		form := b.fields(b.get("change?"+query), "change")
		for why, text := range map[string]string{
			"": "say why", "\t": "say why", strings.Repeat("x", 501): "more than 500", "a\u202eb": "cannot be displayed",
		} {
			form.Set("why", why)
			a := b.do(http.MethodPost, "change", form)
			if a.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: a.StatusCode is %d, want %d", query, a.StatusCode, http.StatusBadRequest)
			}
			if !strings.Contains(a.text, text) {
				t.Errorf("%s: %q is missing:\n%s", query, text, a.text)
			}
		}
	}
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
}

// Messages that fail after somebody has read the form are not changed.
func TestAChangeTakesNoMoreThanWasShown(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard&consumer=payments"), "change")
	if got := form.Get("limit"); got != "3" {
		t.Errorf(`form.Get("limit") is %q, want "3"`, got)
	}
	b.quarantine("payments", "orders.placed", message.NewMessage("newer", []byte("{}")), errCard)
	form.Set("why", "test orders")
	says(t, b.follow(b.do(http.MethodPost, "change", form)).text, "3 of 3")
	if got := b.Count("once_parked WHERE message_id = 'newer' AND state = 'quarantined'"); got != 1 {
		t.Errorf(`b.Count("once_parked WHERE message_id = 'newer' AND state = 'quarantined'") is %d, want 1`, got)
	}
	form.Del("limit")
	if got := b.do(http.MethodPost, "change", form).StatusCode; got != http.StatusBadRequest {
		t.Errorf(`b.do(http.MethodPost, "change", form).StatusCode is %d, want %d: a form without the number`, got, http.StatusBadRequest)
	}
}

// A cancel leaves out a due message if a forwarder has a lease, because the forwarder
// may be sending the message.
func TestCancelLeavesOutWhatMayBeSent(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	b.Exec(`UPDATE once_slots SET owner = 'idle', lease_until = ` + b.FromNow(time.Hour))
	page := b.get("change?do=cancel&all=1").text
	says(t, page, "3 messages")
	if want := "1 message would be left out"; !strings.Contains(page, want) {
		t.Errorf("%q is missing:\n%s", want, page)
	}
	forced := b.get("change?all=1&do=cancel&force=1").text
	says(t, forced, "4 messages")
	if want := `<input type="hidden" name="force" value="1">`; !strings.Contains(forced, want) {
		t.Errorf("%q is missing:\n%s", want, forced)
	}
	says(t, b.change("do=cancel&all=1", "void").text, "3 of 3")
	if got := b.Count("once_outbox WHERE message_id = 'due-1'"); got != 1 {
		t.Errorf(`b.Count("once_outbox WHERE message_id = 'due-1'") is %d, want 1`, got)
	}
}

func TestTwoOperatorsAtOnce(t *testing.T) {
	b := newBench(t, func(c *console.Config) {
		c.Authorize = func(r *http.Request, _ console.Action) (string, error) { return r.Header.Get("X-User"), nil }
	})
	as := func(name string) func(r *http.Request) { return func(r *http.Request) { r.Header.Set("X-User", name) } }
	b.die("orders.placed", "one", "", "{}", "exhausted", "no queue")
	form := b.fields(b.do(http.MethodGet, "change?do=discard-dead&id=1", nil, as("ann")), "change")
	form.Set("why", "because")
	var (
		group   sync.WaitGroup
		answers [2]answer
	)
	for i, name := range []string{"ann", "bob"} {
		group.Go(func() { answers[i] = b.do(http.MethodPost, "change", form, as(name)) })
	}
	group.Wait()
	changed := 0
	for i, a := range answers {
		if a.StatusCode == http.StatusConflict { // the other change is running
			says(t, a.text, "is running")
			continue
		}
		if a.StatusCode != http.StatusSeeOther {
			t.Fatalf("%d: a.StatusCode is %d, want %d", i, a.StatusCode, http.StatusSeeOther)
		}
		if strings.Contains(b.do(http.MethodGet, a.Header.Get("Location"), nil, as("ann")).text, "1 of 1") {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("changed is %d, want 1: one of them has discarded it", changed)
	}
	if got := b.Audits(); len(got) != 1 {
		t.Errorf("%d audits, want 1: %q", len(got), got)
	}
	if got := b.Count("once_outbox_dead"); got != 0 {
		t.Errorf(`b.Count("once_outbox_dead") is %d, want 0`, got)
	}
	want := "Somebody else may have changed it first"
	says(t, b.do(http.MethodGet, "change?do=discard-dead&id=1", nil, as("bob")).text, want)
}

// Closing the console pauses a running replay, and refuses new changes.
func TestCloseEndsWhatRuns(t *testing.T) {
	b := newBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("m", []byte("ok")), errCard)
	gate := make(chan struct{})
	defer close(gate)
	b.consume(gate)
	b.change("do=replay&consumer=payments", "try")
	kit.OK(t, b.console.Close())
	says(t, b.get("replay?id=1").text, "s-paused")
	form := url.Values{"do": {"discard-dead"}, "all": {"1"}, "limit": {"1"}, "why": {"because"}}
	a := b.do(http.MethodPost, "change", form)
	if a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a.StatusCode is %d, want %d", a.StatusCode, http.StatusServiceUnavailable)
	}
	says(t, a.text, "The process is stopping")
}

func TestAFailingDatabaseIsNotDescribed(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	b.Exec(`ALTER TABLE once_outbox_dead RENAME TO secret_table`)
	a := b.do(http.MethodGet, "dead", nil)
	if a.StatusCode != http.StatusInternalServerError {
		t.Errorf("a.StatusCode is %d, want %d", a.StatusCode, http.StatusInternalServerError)
	}
	hides(t, a.text, "outbox_dead")
	if !b.logs.Has("Console page failed", "outbox_dead") {
		t.Error(`b.logs.Has("Console page failed", "outbox_dead") returned false`)
	}
}
