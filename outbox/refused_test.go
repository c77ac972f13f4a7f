package outbox_test

import (
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func with(key, value string) *message.Message {
	msg := message.NewMessage("id", nil)
	msg.Metadata[key] = value
	return msg
}

// refusals returns invalid messages. For each message it also returns the name of the
// field that the error must name.
func refusals() map[string]struct {
	topic string
	msg   *message.Message
	field string
} {
	long := strings.Repeat("x", 256)
	both := with(outbox.DueAt, time.Now().Format(time.RFC3339))
	outbox.SetOrderingKey(both, "key")
	delayed := with(outbox.OrderingKey, "key")
	delay.Message(delayed, delay.For(time.Hour))
	heavy := message.NewMessage("id", nil)
	for key := range strings.SplitSeq("abcdefgh", "") {
		heavy.Metadata[key] = strings.Repeat("y", 128<<10)
	}
	return map[string]struct {
		topic string
		msg   *message.Message
		field string
	}{
		"nil message":         {"t", nil, "message"},
		"empty id":            {"t", message.NewMessage("", nil), "id"},
		"long id":             {"t", message.NewMessage(long, nil), "id"},
		"NUL in id":           {"t", message.NewMessage("a\x00b", nil), "id"},
		"bad UTF-8 in id":     {"t", message.NewMessage("a\xffb", nil), "id"},
		"empty topic":         {"", message.NewMessage("id", nil), "topic"},
		"long topic":          {long, message.NewMessage("id", nil), "topic"},
		"NUL in topic":        {"a\x00", message.NewMessage("id", nil), "topic"},
		"bad UTF-8 in topic":  {"a\xc3", message.NewMessage("id", nil), "topic"},
		"empty ordering key":  {"t", with(outbox.OrderingKey, ""), `metadata "once_ordering_key"`},
		"long ordering key":   {"t", with(outbox.OrderingKey, long), `metadata "once_ordering_key"`},
		"NUL in ordering key": {"t", with(outbox.OrderingKey, "\x00"), `metadata "once_ordering_key"`},
		"bad UTF-8 in key":    {"t", with(outbox.OrderingKey, "\xff"), `metadata "once_ordering_key"`},
		"NUL in name":         {"t", with("a\x00b", ""), `metadata "a\x00b"`},
		"NUL in value":        {"t", with("a", "\x00"), `metadata "a"`},
		"bad UTF-8 in name":   {"t", with("a\xff", ""), `metadata "a\xff"`},
		"bad UTF-8 in value":  {"t", with("a", "\xed\xa0\x80"), `metadata "a"`},
		"too many bytes":      {"t", heavy, "metadata"},
		"payload":             {"t", message.NewMessage("id", make([]byte, 16<<20+1)), "payload"},
		"unreadable due time": {"t", with(outbox.DueAt, "tomorrow"), `metadata "once_due_at"`},
		"empty due time":      {"t", with(outbox.DueAt, ""), `metadata "once_due_at"`},
		"due time and key":    {"t", both, `metadata "once_due_at"`},
		"delay and key":       {"t", delayed, `metadata "_watermill_delayed_until"`},
		"unreadable delay":    {"t", with(delay.DelayedUntilKey, "tomorrow"), `metadata "_watermill_delayed_until"`},
		"unreadable duration": {"t", with(delay.DelayedForKey, "soon"), `metadata "_watermill_delayed_for"`},
		"a broker's limit":    {"t", with("forbidden", "q"), "message"},
	}
}

// errForbidden is the error that a Check returns.
var errForbidden = errors.New("metadata forbidden cannot be sent")

func forbidden(_ string, msg *message.Message) error {
	if msg.Metadata["forbidden"] != "" {
		return errForbidden
	}
	return nil
}

// Every error names the field that was refused.
func TestInvalidMessageIsRefusedWithItsField(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o, err := outbox.New(outbox.Config{Schema: config, Check: forbidden})
		kit.OK(t, err)
		good := message.NewMessage("good", nil)
		for name, c := range refusals() {
			t.Run(name, func(t *testing.T) {
				kit.OK(t, o.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
					refused := events.Publish(c.topic, c.msg)
					if !errors.Is(refused, outbox.ErrInvalid) {
						t.Fatalf("got %v, want ErrInvalid", refused)
					}
					var field *outbox.FieldError
					if !errors.As(refused, &field) {
						t.Fatalf("got %v, want a FieldError", refused)
					}
					if field.Field != c.field {
						t.Fatalf("field.Field is %q, want %q", field.Field, c.field)
					}
					if got := refused.Error(); !strings.Contains(got, "outbox: message 0") {
						t.Fatalf(`%q does not contain "outbox: message 0"`, got)
					}
					if got := len(refused.Error()); got >= 500 {
						t.Fatalf("len(refused.Error) is %d, want less than 500", got)
					}
					return events.Publish("t", good) // the transaction can still be used
				}))
			})
		}
		if got, want := rows(t, db, config), len(refusals()); len(got) != want {
			t.Fatalf("%d rows, want %d: only the good ones are stored: %+v", len(got), want, got)
		}
	})
}

func TestErrorOfCheckIsReturned(t *testing.T) {
	o, err := outbox.New(outbox.Config{Check: forbidden})
	kit.OK(t, err)
	_, _, err = o.Statements(t.Context(), "t", message.NewMessage("fine", nil), with("forbidden", "q"))
	const want = `outbox: message 1 (id "id"): message is refused by Config.Check: metadata forbidden cannot be sent`
	if err == nil || err.Error() != want || !errors.Is(err, outbox.ErrInvalid) || !errors.Is(err, errForbidden) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Metadata that only RabbitMQ refuses is stored, because the forwarder may send to
// another broker.
func TestLimitsOfRabbitMQAreNotThoseOfTheOutbox(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		msg := with("x-request-id", "17")
		for _, key := range []string{"CC", "BCC", "user-id", "expiration", strings.Repeat("k", 300)} {
			msg.Metadata[key] = "value"
		}
		msg.Metadata["much"] = strings.Repeat("y", 100<<10)
		kit.OK(t, publish(t, db, newOutbox(t, config), "t", msg))
		if got := rows(t, db, config); len(got) != 1 || got[0].metadata["x-request-id"] != "17" || len(got[0].metadata) != 7 {
			t.Errorf("%d rows, want one with 7 metadata keys: %+v", len(got), got)
		}
	})
}

func TestLargestValidMessageIsStored(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		name := strings.Repeat("x", 255)
		msg := message.NewMessage(name, make([]byte, 16<<20))
		outbox.SetOrderingKey(msg, name)
		msg.Metadata[name] = strings.Repeat("y", 60<<10)
		msg.Metadata["xylophone"] = "not x-"
		msg.Metadata["account"] = "not cc"
		kit.OK(t, publish(t, db, newOutbox(t, config), name, msg))
		if got := rows(t, db, config); len(got) != 1 {
			t.Fatalf("%d rows, want 1: %+v", len(got), got)
		}
	})
}

func TestErrorNamesAllRefusalsOfACall(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		err := publish(t, db, newOutbox(t, config), "t",
			message.NewMessage("fine", nil),
			message.NewMessage("", nil),
			with("once_mine", "q"),
			nil,
		)
		var seen []int
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok {
			t.Fatalf("%v joins no errors", err)
		}
		for _, each := range joined.Unwrap() {
			var field *outbox.FieldError
			if !errors.As(each, &field) {
				t.Fatalf("got %v, want a FieldError", each)
			}
			seen = append(seen, field.Index)
		}
		if want := []int{1, 2, 3}; !slices.Equal(seen, want) {
			t.Fatalf("seen is %v, want %v", seen, want)
		}
		if got := rows(t, db, config); len(got) != 0 {
			t.Fatalf("rows(config) are %+v, want none: the good one is not stored either", got)
		}
	})
}

func TestErrorsQuoteNoContents(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		msg := with("password", "hunter2\x00")
		msg.Payload = []byte("hunter2")
		if got := publish(t, db, newOutbox(t, config), "t", msg).Error(); strings.Contains(got, "hunter2") {
			t.Fatalf(`%q contains "hunter2"`, got)
		}
	})
}

// Trap 06. A publisher without a transaction refuses messages. If it used another
// connection, it would publish events of transactions that roll back.
func TestPublishWithoutATransactionIsRefused(t *testing.T) {
	if err := outbox.Publisher(nil).Publish("t", message.NewMessage("id", nil)); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Fatalf("Publisher: got %v, want ErrNoTransaction", err)
	}
	if err := outbox.Publisher(nil).Publish("t"); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Fatalf("Publish: got %v, want ErrNoTransaction", err)
	}
}

func TestConfigErrorNamesTheField(t *testing.T) {
	_, err := outbox.New(outbox.Config{MaxPayload: -1, Schema: schema.Config{Prefix: "a-b", Dialect: "oracle"}})
	if err == nil || !strings.Contains(err.Error(), "MaxPayload") {
		t.Fatalf(`got %v, want an error with "MaxPayload"`, err)
	}
	if err == nil || !strings.Contains(err.Error(), "Prefix") {
		t.Fatalf(`got %v, want an error with "Prefix"`, err)
	}
	if err == nil || !strings.Contains(err.Error(), "Dialect") {
		t.Fatalf(`got %v, want an error with "Dialect"`, err)
	}
}

// Trap 31. PostgreSQL truncates names that are longer than 63 bytes, so a long prefix
// is refused.
func TestLongNamesAreRefused(t *testing.T) {
	_, err := outbox.New(outbox.Config{Schema: schema.Config{Prefix: strings.Repeat("p", 60)}})
	if err == nil || !strings.Contains(err.Error(), "Prefix") {
		t.Fatalf(`got %v, want an error with "Prefix"`, err)
	}
}

// A delay of Watermill's package components/delay becomes the due time of the row, with
// each publisher of this package. The delay is not passed on.
func TestDelayOfWatermillBecomesTheDueTime(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		wrapped := func(events message.Publisher) message.Publisher {
			p, err := delay.NewPublisher(events, delay.PublisherConfig{
				DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) { return delay.For(time.Hour), nil },
			})
			kit.OK(t, err)
			return p
		}
		adapted := func(tx *sql.Tx) message.Publisher {
			p, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: o.SchemaAdapter()}, nil)
			kit.OK(t, err)
			return p
		}
		delayed := func(id string, d delay.Delay) *message.Message {
			msg := message.NewMessage(id, nil)
			delay.Message(msg, d)
			return msg
		}
		both := delayed("due-at", delay.For(time.Minute))
		outbox.SetDueAt(both, time.Now().Add(time.Hour))
		past := delayed("past", delay.For(-time.Minute))
		outbox.SetOrderingKey(past, "key")
		copied := delayed("copied", delay.For(time.Hour)) // published an hour after the delay was set
		copied.Metadata[delay.DelayedUntilKey] = time.Now().UTC().Truncate(time.Second).Add(-2 * time.Second).Format(time.RFC3339)
		kit.OK(t, o.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
			for _, p := range []struct {
				to  message.Publisher
				msg *message.Message
			}{
				{events, delayed("until", delay.Until(time.Now().UTC().Add(time.Hour)))},
				{events, delayed("for", delay.For(time.Hour))},
				{events, both},
				{events, past},
				{events, copied},
				{events, delayed("none", delay.Delay{})},
				{wrapped(events), message.NewMessage("wrapped", nil)},
				{adapted(tx), delayed("adapter", delay.For(time.Hour))},
			} {
				if err := p.to.Publish("t", p.msg); err != nil {
					t.Fatal(p.msg.UUID, err)
				}
			}
			return nil
		}))
		all := rows(t, db, config)
		for _, r := range all {
			now := r.id == "past" || r.id == "none" || r.id == "copied"
			// The sender must not send earlier. On a busy machine this test can read the rows later.
			if r.delayed == now || !now && (r.waits > time.Hour+time.Second || r.waits < 55*time.Minute) || len(r.metadata) > 1 {
				t.Errorf("%s is delayed by %v (%v), with metadata %v", r.id, r.waits, r.delayed, r.metadata)
			}
		}
		if len(all) != 8 {
			t.Errorf("%d rows, want 8: %+v", len(all), all)
		}
	})
}

// A delay of half a second must not be lost, although Watermill rounds the time of its
// end down to seconds.
func TestShortDelayOfWatermillIsNotLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const short = 900 * time.Millisecond
		for range 3 {
			msg := message.NewMessage("m", nil)
			began := time.Now()
			delay.Message(msg, delay.For(short))
			kit.OK(t, publish(t, db, newOutbox(t, config), "t", msg))
			all := rows(t, db, config)
			if r, left := all[len(all)-1], short-time.Since(began)-10*time.Millisecond; r.waits < left {
				t.Errorf("the message waits for %v, want at least %v", r.waits, left)
			}
		}
	})
}

// The package-level functions are for PostgreSQL. In a transaction of SQLite, their error
// must name the wrong dialect, instead of a syntax error.
func TestPublishNamesTheWrongDialect(t *testing.T) {
	t.Parallel()
	tx, err := kit.SQLite(t).BeginTx(t.Context(), nil)
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	err = outbox.Publisher(tx).Publish("t", message.NewMessage("1", nil))
	want := regexp.MustCompile(`^outbox: schema: check: the database is not of the kind that Dialect names: ` +
		`Dialect is "postgres", the database is SQLite [0-9.]+: set Config.Dialect to schema.SQLite$`)
	if !errors.Is(err, schema.ErrDialect) || !want.MatchString(err.Error()) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
