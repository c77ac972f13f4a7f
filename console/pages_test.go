package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// texts has the texts that each page must contain after seed.
var texts = map[string][]string{
	"": {
		"Needs attention", "1 message backs off", "payments gave up on 3 messages", "card gateway answered 502", "orders.placed",
	},
	"forwarders": {"64 slots have no forwarder", "Start a forwarder", "No forwarder runs."},
	"consumers": {
		"mail", ", in key order", "running", "host/17/a1", "sendMail", "payments", "not registered",
		"paused by", "the provider is down", "do=pause-consumer", "do=resume-consumer",
	},
	"parked":                          {"parked-1", "mail server is full", "2 attempts", "waits for 5", "failed-1", "Run selected now"},
	"parked?consumer=mail&state=held": {"parked-2"},
	"parked-message?id=5":             {"parked-1", "customer-5", "mail server is full", "&#34;order&#34;: 7", "Run now", "Trace it"},
	"parked-message?id=6":             {"parked-2", "message 5"},
	"parked-message?id=1":             {"Open the quarantine entry"},
	"trace":                           {"Enter a message id, an aggregate id or a tenant."},
	"trace?message=failed-1": {
		"Trace of failed-1", "payments", "quarantined", "card gateway answered 502", "parked-message?id=2",
	},
	"trace?message=refused-1&causes=1": {"no queue is bound", "message?id=2", "checked"},
	"trace?message=nowhere":            {"No table of this database has it"},
	"audit":                            {"Nobody has changed anything."},

	"change?do=pause-consumer&consumer=payments":  {"1 topic of the consumer", "No attempts are counted"},
	"change?do=resume-consumer&consumer=shipping": {"1 topic of the consumer", "Resume"},
	"change?do=run-parked&consumer=mail":          {"1 message", "Run now"},
	"change?do=cancel-parked&consumer=mail":       {"2 messages", "go into quarantine"},
	"change?do=discard-parked&consumer=mail":      {"2 messages", "never handled"},
	"outbox": {
		"orders.placed", "stock.changed", "refused-1", "no queue is bound", "backing off", "customer-7", "Blocked ordering keys",
	},
	"outbox?state=delayed":         {"later-1"},
	"outbox?topic=stock.changed":   {"later-1"},
	"outbox?key=customer-7":        {"refused-1", "behind-1"},
	"message?id=2":                 {"refused-1", "no queue is bound", "&#34;order&#34;: 2", "Retry now", "Cancel"},
	"dead":                         {"dead-1", "dead-2", "message is too large", "blocks its key"},
	"dead?reason=unacceptable":     {"dead-2"},
	"letter?id=2":                  {"dead-2", "Release the key", "&#34;order&#34;: 5", "0af7"},
	"sent":                         {"sent-1", "Send selected again"},
	"copy?id=1":                    {"sent-1", "&#34;order&#34;: 6"},
	"quarantine":                   {"Failure groups", "card gateway answered 502", "no address", "failed-2", "shipping"},
	"quarantine?consumer=shipping": {"no address", "binary"},
	"entry?id=1": {
		"failed-0", "card gateway answered 502", "*errors.errorString", "trace", "0af7", "&#34;order&#34;: 10", "Replay", "Edit", "Discard",
	},
	"entry?id=1&view=text":                {"{&#34;order&#34;:10,&#34;amount&#34;:-0}"},
	"entry?id=4":                          {"00000000  00 01 ff 0d 0a"}, // a payload that is not text is shown in hexadecimal
	"entry?id=4&view=text":                {`\u0000\u0001\xff\u000d`},
	"replays":                             {"There are no replays yet"},
	"edit?id=1":                           {"Compare", "{&#34;order&#34;:10"},
	"edit?id=4":                           {"00 01 ff 0d 0a", "hexadecimal"},
	"reconcile":                           {"No report is kept."},
	"change?do=retry&all=1":               {"1 message", "Retry now"},
	"change?do=cancel&all=1":              {"4 messages"},
	"change?do=replay-dead&all=1":         {"2 messages", "message is too large"},
	"change?do=discard-dead&id=1":         {"1 message", "deleted for good"},
	"change?do=release&key=customer-9":    {"1 message"},
	"change?do=replay-sent&id=1":          {"1 message"},
	"change?do=replay&all=1":              {"4 messages", "Canary"},
	"change?do=discard&consumer=payments": {"3 messages"},
}

func TestEveryPageShowsTheMessages(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		for page, parts := range texts {
			text := b.get(page).text
			for _, part := range parts {
				if !strings.Contains(text, part) {
					t.Errorf("%s: %q is missing:\n%s", page, part, text)
				}
			}
			if want := `<div class="environment purple">test</div>`; !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing:\n%s", page, want, text)
			}
		}
		hides(t, b.get("quarantine?consumer=shipping").text, "failed-1")
		hides(t, b.get("dead?reason=unacceptable").text, "dead-1")
	})
}

// The first request for the page starts to count the messages of each day in the
// background. A later request shows the numbers.
func TestTheLastDaysAreCounted(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		kit.Eventually(t, time.Minute, "the days are counted", func() bool {
			return strings.Contains(b.get("days").text, time.Now().UTC().AddDate(0, 0, -29).Format("2006-01-02"))
		})
		cell := func(n string) string { return `\s*<td class="number"[^>]*>` + n + `</td>` }
		row := cell("1") + cell("0") + cell("4") + cell("2") // sent, handled, quarantined, dead
		if got := b.get("days").text; !regexp.MustCompile(row).MatchString(got) {
			t.Errorf("%s does not match %s", got, row)
		}
		if got, want := unescape(b.get("").text), `"labels":["Sent","Given up","Handled"]`; !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	})
}

func TestAnEmptyDatabaseSaysWhatWouldBeThere(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		for page, part := range map[string]string{
			"":                       "Nothing.",
			"outbox":                 "The outbox is empty.",
			"outbox?topic=x":         "No message matches.",
			"dead":                   "There are no dead letters.",
			"dead?topic=x":           "No dead letter matches.",
			"sent":                   "The sent log is empty.",
			"sent?topic=x":           "No sent message matches.",
			"quarantine":             "The quarantine is empty.",
			"quarantine?topic=x":     "No failure matches.",
			"replays":                "There are no replays yet.",
			"forwarders":             "No forwarder runs.",
			"consumers":              "No consumer is known.",
			"parked":                 "No messages are parked.",
			"parked?topic=x":         "No parked message matches.",
			"trace":                  "Enter a message id, an aggregate id or a tenant.",
			"trace?aggregate=x":      "No message matches.",
			"audit":                  "Nobody has changed anything.",
			"audit?actor=x":          "No action matches.",
			"change?do=discard&id=1": "Nothing.",
		} {
			if got := b.get(page).text; !strings.Contains(got, part) {
				t.Errorf("%s: %q is missing:\n%s", page, part, got)
			}
		}
	})
}

func TestAMistakeInTheURLIsNamed(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	for page, want := range map[string]struct {
		status int
		text   string
	}{
		"outbox?state=waiting":                           {http.StatusBadRequest, "state is &#34;waiting&#34;, but must be one of due, "},
		"dead?reason=bored":                              {http.StatusBadRequest, "reason is &#34;bored&#34;, but must be one of "},
		"quarantine?reason=bored":                        {http.StatusBadRequest, "reason is &#34;bored&#34;, but must be one of "},
		"quarantine?from=yesterday":                      {http.StatusBadRequest, "&#34;yesterday&#34; is not a time"},
		"dead?from=2026-01-02&to=2026":                   {http.StatusBadRequest, "is not a time"},
		"sent?from=2026-01-02T00:00&to=2026-01-01T00:00": {http.StatusBadRequest, "is not after"},
		"sent?from=2026-01-02T00:00&to=2026-01-02T00:00": {http.StatusBadRequest, "is not after"},
		"outbox?after=-1":                                {http.StatusBadRequest, "after"},
		"outbox?topic=%00":                               {http.StatusBadRequest, "characters that no message can contain"},
		"outbox?topic=%ff":                               {http.StatusBadRequest, "characters that no message can contain"},
		"entry?id=x":                                     {http.StatusBadRequest, "id &#34;x&#34;"},
		"entry?id=99999":                                 {http.StatusNotFound, "not here any more"},
		"message?id=99999":                               {http.StatusNotFound, "not here any more"},
		"letter?id=99999":                                {http.StatusNotFound, "not here any more"},
		"copy?id=99999":                                  {http.StatusNotFound, "not here any more"},
		"replay?id=99999":                                {http.StatusNotFound, "No such replay"},
		"job?id=99999":                                   {http.StatusNotFound, "No such change in this process"},
		"payload?of=disk&id=1":                           {http.StatusBadRequest, "of is &#34;disk&#34;, but must be one of "},
		"change?do=explode&all=1":                        {http.StatusBadRequest, "explode"},
		"change?do=discard":                              {http.StatusBadRequest, "nothing is selected"},
		"change?do=discard&all=1&topic=x":                {http.StatusBadRequest, "selects everything"},
		"change?do=retry&state=blocked":                  {http.StatusBadRequest, "state is &#34;blocked&#34;"},
		"trace?message=m&causes=no":                      {http.StatusBadRequest, "causes is &#34;no&#34;"},
		"change?do=replay&all=1&canary=many":             {http.StatusBadRequest, "canary &#34;many&#34;"},
		"parked?state=due":                               {http.StatusBadRequest, "state is &#34;due&#34;, but must be one of waiting, held"},
		"parked-message?id=99999":                        {http.StatusNotFound, "not here any more"},
		"payload?of=parked&id=99999":                     {http.StatusNotFound, "not here any more"},
		"change?do=run-parked&state=held":                {http.StatusBadRequest, "state is &#34;held&#34;, but must be one of waiting"},
		"trace?message=x&tenant=y":                       {http.StatusBadRequest, "only one of them"},
		"trace?type=order":                               {http.StatusBadRequest, "aggregate is empty"},
		"trace?message=%00":                              {http.StatusBadRequest, "characters that no message can contain"},
		"audit?replay=x":                                 {http.StatusBadRequest, "replay &#34;x&#34;"},
		"audit?from=yesterday":                           {http.StatusBadRequest, "is not a time"},
		"nosuch":                                         {http.StatusNotFound, "No such page"},
	} {
		a := b.do(http.MethodGet, page, nil)
		if a.StatusCode != want.status {
			t.Errorf("%s: a.StatusCode is %d, want %d", page, a.StatusCode, want.status)
		}
		if !strings.Contains(a.text, want.text) {
			t.Errorf("%s: %q is missing:\n%s", page, want.text, a.text)
		}
	}
	if got := b.logs.Count("Console page failed"); got != 0 {
		t.Errorf(`b.logs.Count("Console page failed") is %d, want 0: a mistake of a reader is no failure`, got)
	}
}

func TestAListHasPages(t *testing.T) {
	b := quickBench(t, nil)
	for range 101 {
		b.die("orders.placed", "id", "", "{}", "exhausted", "no queue")
	}
	first := b.get("dead?topic=orders.placed")
	if want := `href="dead?after=100&amp;topic=orders.placed" rel="next"`; !strings.Contains(first.text, want) {
		t.Errorf("%q is missing:\n%s", want, first.text)
	}
	second := b.get("dead?after=100&topic=orders.placed")
	if got := strings.Count(second.text, `href="letter?id=`); got != 1 {
		t.Errorf("%d letters, want 1", got)
	}
	if want := `rel="next"`; strings.Contains(second.text, want) {
		t.Errorf("%q is there:\n%s", want, second.text)
	}
}

func TestThePagesWorkUnderAnyPath(t *testing.T) {
	b := quickBench(t, nil)
	mux := http.NewServeMux()
	mux.Handle("/", b.console)
	mux.Handle("/a/b/c/", b.console)
	mux.Handle("/stripped/", http.StripPrefix("/stripped", b.console))
	mux.Handle("/bare", http.StripPrefix("/bare", b.console))
	b.server.Config.Handler = mux
	for _, b.prefix = range []string{"/", "/a/b/c/", "/stripped/"} {
		text := b.get("").text
		if want := `<a href="outbox">`; !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
		if regexp.MustCompile(`(href|src|action)="/`).MatchString(text) {
			t.Errorf("%s matches %s: a link is not relative", text, `(href|src|action)="/`)
		}
		b.get("outbox")
		b.get("console.css")
	}
	b.prefix = "/"
	if got := b.do(http.MethodGet, "bare", nil).Header.Get("Location"); got != "./bare/" {
		t.Errorf(`b.do(http.MethodGet, "bare", nil).Header.Get("Location") is %q, want "./bare/"`, got)
	}
}

func TestTheConfigurationIsChecked(t *testing.T) {
	_, err := console.Handler(nil, console.Config{Color: "pink", MaxEdit: -1, Environment: " production"})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, part := range []string{
		"console: db is nil", "Authorize is nil", `Color is "pink"`, "MaxEdit is -1", `Environment is " production"`,
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want an error with %q", err, part)
		}
	}
}

// Pages count up to 10,000 rows, and say if only a part of the sent log was searched.
func TestPagesOfManyRowsShowWhatWasNotCounted(t *testing.T) {
	t.Parallel()
	b := benchIn(t, kit.Postgres(t), nil)
	b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason)
		SELECT 'payments', CASE WHEN i <= 10000 THEN 'most' ELSE 'few' END, 'q' || i, '', '', 'quarantined', now(), 'f', 'exhausted'
		FROM generate_series(1, 10001) AS i`)
	b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
		SELECT i, 'd' || i, CASE WHEN i <= 10000 THEN 'most' ELSE 'few' END, '', '{}', now(), 20, 'no queue', 'exhausted', false
		FROM generate_series(1, 10001) AS i`)
	b.Exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
		SELECT i, 's' || i, CASE WHEN i <= 50000 THEN 'most' ELSE 'few' END, '', '{}', now() FROM generate_series(1, 50001) AS i`)
	for page, parts := range map[string][]string{
		"quarantine":                     {`Entries <span class="muted">10,000+</span>`},
		"quarantine?after=5000":          {`Entries <span class="muted">10,000+</span>`},
		"quarantine?topic=most":          {`Entries <span class="muted">10,000</span>`},
		"quarantine?topic=few":           {`Entries <span class="muted">1</span>`},
		"dead":                           {`<span class="muted">10,000+</span>`},
		"dead?topic=most":                {`<span class="muted">10,000</span>`},
		"dead?topic=few":                 {`<span class="muted">1</span>`},
		"sent?topic=few":                 {"No sent message matches so far.", `href="sent?after=50000&amp;topic=few"`},
		"sent?topic=few&after=50000":     {"s50001"},
		"sent?topic=neither&after=50000": {"No sent message matches."},
	} {
		got := b.get(page).text
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q is missing:\n%.3000s", page, part, got)
			}
		}
	}
}

// If several conditions match many rows each, but rarely the same ones, pages say that
// only a part was searched.
func TestPagesOfSearchesWithSeveralConditionsLinkToTheRest(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := benchIn(t, kit.Postgres(t), nil)
	// The first and the last row have both values.
	b.Exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason, tenant)
		SELECT CASE WHEN i % 2 = 1 OR i = 30000 THEN 'payments' ELSE 'mail' END, 'orders', 'q' || i, '', '', 'quarantined', now(), 'f', 'failed',
		       CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE 'umbrella' END
		FROM generate_series(1, 30000) AS i`)
	b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown,
			tenant)
		SELECT i, 'd' || i, CASE WHEN i % 2 = 1 OR i = 30000 THEN 'orders' ELSE 'mail' END, '', '{}', now(), 20, 'no queue', 'exhausted', false,
		       CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE 'umbrella' END
		FROM generate_series(1, 30000) AS i`)
	for page, parts := range map[string][]string{
		"quarantine?consumer=payments&tenant=acme": {
			"q1<", `<span class="muted">1+</span>`, `href="quarantine?after=19999&amp;consumer=payments&amp;tenant=acme"`,
		},
		"quarantine?consumer=payments&tenant=acme&after=1":     {"No entry matches so far.", `href="quarantine?after=20001`},
		"quarantine?consumer=payments&tenant=acme&after=20001": {"q30000"},
		"quarantine?consumer=mail&tenant=umbrella":             {"No failure is known yet.", "No entry matches so far."},
		"dead?topic=orders&tenant=acme": {
			"d1<", `<span class="muted">1+</span>`, `href="dead?after=19999&amp;tenant=acme&amp;topic=orders"`,
		},
		"dead?topic=orders&tenant=acme&after=1":     {"No dead letter matches so far.", `href="dead?after=20001`},
		"dead?topic=orders&tenant=acme&after=20001": {"d30000"},
		"dead?topic=mail&tenant=umbrella": {
			"No cause is known yet.", "No dead letter matches so far.", `<span class="muted">0+</span>`,
		},
	} {
		got := b.get(page).text
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q is missing:\n%.3000s", page, part, got)
			}
		}
	}
}

// A publisher chooses the content of a message. A page that shows it needs little
// memory all the same, in each of its views.
func TestTrap113_PagesOfHostileMessagesNeedLittleMemory(t *testing.T) {
	b := quickBench(t, nil)
	payload := strings.Repeat("[", 9999) + strings.Repeat("]", 9999) // json.Indent makes 200 MB of it
	metadata := message.Metadata{"long": strings.Repeat("<\u202e", 100_000)}
	for i := range 20_000 {
		metadata[fmt.Sprint("key-", i)] = "\x01"
	}
	b.publish("orders", "m1", "A1", payload, metadata)
	b.die("orders", "m1", "", payload, "exhausted", strings.Repeat("\x01", 2000))
	b.send("orders", "m1", payload)
	m := message.NewMessage("m1", []byte(payload))
	m.Metadata = metadata
	id := b.quarantine("payments", "orders", m, errors.New(strings.Repeat("\"", 100_000)))
	const limit = 24 << 20
	for _, page := range []string{
		"message?id=1", "letter?id=1", "copy?id=1", "entry?id=" + itoa(id), "parked-message?id=" + itoa(id), "edit?id=" + itoa(id),
		"outbox", "dead", "quarantine", "trace?message=m1&causes=1",
	} {
		for _, view := range []string{"", "&view=json", "&view=text", "&view=hex"} {
			if view != "" && !strings.HasSuffix(page, "id=1") {
				continue
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			a := b.do(http.MethodGet, page+view, nil)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > limit || len(a.text) > limit/8 {
				t.Errorf("%s%s: %d bytes are allocated for a page of %d bytes, want at most %d", page, view, got, len(a.text), limit)
			}
		}
	}
}

// If the database is not of the configured kind, each page says so, and the log names
// both kinds.
func TestPagesNameTheWrongDialect(t *testing.T) {
	t.Parallel()
	b := quickBench(t, func(c *console.Config) { c.Schema = schema.Config{Dialect: schema.PostgreSQL} })
	const says = `<h1>This is another kind of database</h1>
<p class="note">Set Config.Schema.Dialect of the console to the kind of its database. The log of the service names both kinds.</p>`
	for _, page := range []string{"outbox", "message?id=1", "dead", "sent", "quarantine", "entry?id=1", "replays", "parked", "audit"} {
		a := b.do(http.MethodGet, page, nil)
		if a.StatusCode != http.StatusInternalServerError || !strings.Contains(a.text, says) {
			t.Errorf("%s: %d\n%s", page, a.StatusCode, a.text)
		}
		path, _, _ := strings.Cut(page, "?")
		if b.logs.Count("ERROR Console page failed page=/ops/once/"+path+" err=", `: schema: check: the database is not of the kind `+
			`that Dialect names: Dialect is "postgres", the database is SQLite `, ": set Config.Dialect to schema.SQLite") != 1 {
			t.Errorf("%s: %q", page, b.logs.Lines())
		}
	}
}
