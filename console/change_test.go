package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
)

// count returns how many rows of a table match.
func (b *bench) count(table, where string) int {
	b.Helper()
	return b.number(`SELECT COUNT(*) FROM ` + table + ` WHERE ` + where)
}

func TestEachChangeIsMadeAndAudited(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		later := "due_at > " + (&bench{Database: db}).in(time.Minute)
		for _, c := range []struct{ query, result, table, where, audit string }{
			{"do=retry&all=1", "1 of 1", "once_outbox", "message_id = 'refused-1' AND " + later, "retry | refused-1"},
			{"do=retry&state=delayed", "1 of 1", "once_outbox", "message_id = 'later-1' AND " + later, "retry | later-1"},
			{"do=cancel&id=4", "1 of 1", "once_outbox", "message_id = 'later-1'", "cancel | later-1"},
			{"do=release&key=customer-9", "1 of 1", "once_blocked_keys", "ordering_key = 'customer-9'", "release | "},
			{"do=replay-dead&topic=orders.placed&reason=exhausted", "1 of 1", "once_outbox_dead", "message_id = 'dead-1'", "replay | dead-1"},
			{"do=discard-dead&id=2", "1 of 1", "once_outbox_dead", "message_id = 'dead-2'", "discard | dead-2"},
			{"do=replay-sent&id=1", "1 of 1", "once_outbox", "message_id = 'none'", "replay-sent | sent-1"},
			{"do=run-parked&consumer=mail", "1 of 1", "once_parked", "message_id = 'parked-1' AND " + later, "run | parked-1"},
			{"do=cancel-parked&id=6", "1 of 1", "once_parked", "message_id = 'parked-2' AND state = 'held'", "cancel | parked-2"},
			{"do=discard-parked&id=5", "1 of 1", "once_parked", "message_id = 'parked-1' AND state = 'waiting'", "discard | parked-1"},
			{"do=discard&consumer=shipping", "1 of 1", "once_parked", "message_id = 'binary' AND state = 'quarantined'", "discard | binary"},
		} {
			b := sharedBench(t, db)
			why := "because of " + c.query
			a := b.change(c.query, why)
			assert.Equal(t, http.StatusOK, a.StatusCode, c.query)
			assert.Contains(t, a.text, c.result, "%s\n%s", c.query, strings.Join(b.logs.Lines(), "\n"))
			assert.Contains(t, a.text, "because of", c.query)
			assert.Zero(t, b.count(c.table, c.where), c.query)
			audits := strings.Join(b.audits(), "\n")
			assert.Regexp(t, `ann \| [a-z_ -]+ \| [a-z0-9-]* \| `+why, audits, c.query)
		}
	})
}

// sharedBench returns the bench of a database, which is filled at the first call.
func sharedBench(t *testing.T, db testkit.Database) *bench {
	t.Helper()
	b := benchIn(t, db, nil)
	if b.count("once_outbox_dead", "true")+b.count("once_audit", "true") == 0 {
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
			"": "say why", "\t": "say why", strings.Repeat("x", 501): "more than 500", "a\u202eb": "cannot be shown",
		} {
			form.Set("why", why)
			a := b.do(http.MethodPost, "change", form)
			assert.Equal(t, http.StatusBadRequest, a.StatusCode, query)
			assert.Contains(t, a.text, text, query)
		}
	}
	assert.Empty(t, b.audits())
}

// Messages that fail after somebody has read the form are not a part of it.
func TestAChangeTakesNoMoreThanWasShown(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard&consumer=payments"), "change")
	assert.Equal(t, "3", form.Get("limit"))
	b.quarantine("payments", "orders.placed", message.NewMessage("newer", []byte("{}")), errCard)
	form.Set("why", "test orders")
	assert.Contains(t, b.follow(b.do(http.MethodPost, "change", form)).text, "3 of 3")
	assert.Equal(t, 1, b.count("once_parked", "message_id = 'newer' AND state = 'quarantined'"))
	form.Del("limit")
	assert.Equal(t, http.StatusBadRequest, b.do(http.MethodPost, "change", form).StatusCode, "a form without the number")
}

// A forwarder has a lease, so a due message may be on its way.
func TestCancelLeavesOutWhatMayBeSent(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	b.exec(`UPDATE once_slots SET owner = 'idle', lease_until = ` + b.in(time.Hour))
	page := b.get("change?do=cancel&all=1").text
	assert.Contains(t, page, "3 messages")
	assert.Contains(t, page, "1 message would be left out")
	forced := b.get("change?all=1&do=cancel&force=1").text
	assert.Contains(t, forced, "4 messages")
	assert.Contains(t, forced, `<input type="hidden" name="force" value="1">`)
	assert.Contains(t, b.change("do=cancel&all=1", "void").text, "3 of 3")
	assert.Equal(t, 1, b.count("once_outbox", "message_id = 'due-1'"))
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
		if a.StatusCode == http.StatusConflict { // the other one runs
			assert.Contains(t, a.text, "is running")
			continue
		}
		require.Equal(t, http.StatusSeeOther, a.StatusCode, i)
		if strings.Contains(b.do(http.MethodGet, a.Header.Get("Location"), nil, as("ann")).text, "1 of 1") {
			changed++
		}
	}
	assert.Equal(t, 1, changed, "one of them has discarded it")
	assert.Len(t, b.audits(), 1)
	assert.Zero(t, b.count("once_outbox_dead", "true"))
	assert.Contains(t, b.do(http.MethodGet, "change?do=discard-dead&id=1", nil, as("bob")).text, "Somebody else may have been faster")
}

func TestReplayFromDryRunToResult(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := benchIn(t, db, nil)
		for i := range 12 {
			b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), fmt.Appendf(nil, `{"order":%d}`, i)), errCard)
		}
		done := b.consume(nil)
		page := b.get("change?do=replay&all=1")
		assert.Contains(t, page.text, "12 messages")
		form := b.fields(page, "change")
		assert.Equal(t, "payments", form.Get("consumer"), "the replay does not keep other consumers from theirs")
		assert.Equal(t, "1", form.Get("canary"), "a replay begins carefully")
		form.Set("why", "the gateway is back")
		a := b.do(http.MethodPost, "change", form)
		require.Equal(t, http.StatusSeeOther, a.StatusCode, a.text)
		testkit.Eventually(t, time.Minute, "the replay has ended", func() bool {
			return strings.Contains(b.get("replay?id=1").text, `s-finished`)
		})
		assert.Equal(t, "replay?id=1", b.do(http.MethodGet, a.Header.Get("Location"), nil).Header.Get("Location"))
		text := b.get("replay?id=1").text
		assert.Contains(t, text, "12 of 12")
		assert.Contains(t, text, "the gateway is back")
		assert.Contains(t, text, "canary of 1")
		assert.NotContains(t, text, "hx-get", "the result does not change any more")
		assert.Len(t, done.all(), 12)
		assert.Contains(t, b.get("replays").text, "replay?id=1")
		assert.Contains(t, b.get("entry?id=1").text, "resolved")
	})
}

// A failed canary stops the replay, and it can be resumed.
func TestAReplayStopsAtAFailureAndIsResumed(t *testing.T) {
	b := newBench(t, nil)
	for i, payload := range []string{"bad", "one", "two"} {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte(payload)), errCard)
	}
	done := b.consume(nil)
	b.change("do=replay&consumer=payments", "try")
	testkit.Eventually(t, time.Minute, "the replay has stopped", func() bool {
		return strings.Contains(b.get("replay?id=1").text, `s-stopped`)
	})
	page := b.get("replay?id=1")
	assert.Contains(t, page.text, "1 failed again of the canary")
	assert.Empty(t, done.all())
	assert.Contains(t, b.get("").text, "Replay 1 is stopped")
	form := b.fields(page, "replay")
	assert.Contains(t, b.do(http.MethodPost, "replay", form).text, "say why")
	form.Set("why", "the others are fine")
	assert.Equal(t, http.StatusSeeOther, b.do(http.MethodPost, "replay", form).StatusCode)
	testkit.Eventually(t, time.Minute, "the replay has ended", func() bool {
		return strings.Contains(b.get("replay?id=1").text, `s-finished`)
	})
	assert.ElementsMatch(t, []string{"one", "two"}, done.all())
	form.Set("why", "again")
	testkit.Eventually(t, time.Minute, "the change that resumed it has ended, and another one is refused", func() bool {
		return strings.Contains(b.follow(b.do(http.MethodPost, "replay", form)).text, "the replay has finished")
	})
}

func TestARunningReplayIsStoppedByAnybodyWhoMay(t *testing.T) {
	b := newBench(t, nil)
	for i := range 3 {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte("ok")), errCard)
	}
	gate := make(chan struct{})
	done := b.consume(gate)
	b.change("do=replay&consumer=payments", "try")
	testkit.Eventually(t, time.Minute, "the canary waits for its handler", func() bool {
		return b.count("once_parked", "state = 'waiting'") == 1
	})
	page := b.get("replay?id=1")
	assert.Contains(t, page.text, "hx-get", "the page is live")
	// The consumer has a running replay.
	form := b.fields(b.get("change?do=replay&consumer=payments"), "change")
	form.Set("why", "me too")
	a := b.do(http.MethodPost, "change", form)
	assert.Equal(t, http.StatusConflict, a.StatusCode)
	assert.Contains(t, a.text, "Replay quarantined messages by ann is running")
	a = b.follow(b.do(http.MethodPost, "stop", b.fields(page, "stop")))
	assert.Contains(t, a.text, "s-paused")
	close(gate)
	testkit.Eventually(t, time.Minute, "the canary is handled", func() bool { return len(done.all()) == 1 })
	assert.Equal(t, 2, b.count("once_parked", "state = 'quarantined'"))
}

// Another process, such as the command line, runs the replay.
func TestAReplayOfAnotherProcessIsStopped(t *testing.T) {
	b := newBench(t, nil)
	for i := range 3 {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte("ok")), errCard)
	}
	gate := make(chan struct{})
	b.consume(gate)
	other, err := poison.New(b.DB, poison.Config{Schema: b.tables})
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		act := poison.Act{Actor: "bob", Why: "try"}
		_, err := other.ReplayMatching(t.Context(), act, poison.Filter{Consumer: "payments"}, poison.Plan{Canary: 1})
		ended <- err
	}()
	testkit.Eventually(t, time.Minute, "the canary waits for its handler", func() bool {
		return b.count("once_parked", "state = 'waiting'") == 1
	})
	form := b.fields(b.get("replay?id=1"), "stop")
	assert.Equal(t, http.StatusBadRequest, b.do(http.MethodPost, "stop", form).StatusCode, "why is missing")
	form.Set("why", "wrong queue")
	a := b.follow(b.do(http.MethodPost, "stop", form))
	assert.Contains(t, a.text, "s-stopped")
	close(gate)
	require.ErrorIs(t, <-ended, poison.ErrReplayStopped)
	assert.Equal(t, 2, b.count("once_parked", "state = 'quarantined'"))
}

func TestAReplayToAConsumerThatDoesNotRunIsRefused(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=replay&consumer=payments"), "change")
	form.Set("why", "try")
	job := b.do(http.MethodPost, "change", form).Header.Get("Location")
	testkit.Eventually(t, time.Minute, "the replay is refused", func() bool {
		text := b.get(job).text
		return strings.Contains(text, "the consumer is not running") && strings.Contains(text, "s-abandoned")
	})
	assert.Equal(t, 4, b.count("once_parked", "state = 'quarantined'"))
}

// Closing the console pauses what runs: nothing is lost, and nothing is left behind.
func TestCloseEndsWhatRuns(t *testing.T) {
	b := newBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("m", []byte("ok")), errCard)
	gate := make(chan struct{})
	defer close(gate)
	b.consume(gate)
	b.change("do=replay&consumer=payments", "try")
	require.NoError(t, b.console.Close())
	assert.Contains(t, b.get("replay?id=1").text, "s-paused")
	form := url.Values{"do": {"discard-dead"}, "all": {"1"}, "limit": {"1"}, "why": {"because"}}
	a := b.do(http.MethodPost, "change", form)
	assert.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	assert.Contains(t, a.text, "The process is stopping")
}

func TestAFailingDatabaseIsNotDescribed(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	b.exec(`ALTER TABLE once_outbox_dead RENAME TO secret_table`)
	a := b.do(http.MethodGet, "dead", nil)
	assert.Equal(t, http.StatusInternalServerError, a.StatusCode)
	assert.NotContains(t, a.text, "outbox_dead")
	assert.True(t, b.logs.Has("Console page failed", "outbox_dead"))
}
