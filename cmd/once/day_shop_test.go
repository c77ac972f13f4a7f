package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

const placed = "orders.placed"

// order is the payload of a message.
type order struct {
	ID       string `json:"id"`
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
	Street   string `json:"street,omitempty"`

	tenant string
}

// place commits orders to the outbox.
func place(s *shell, db kit.Database, orders ...order) {
	s.Helper()
	kit.OK(s, outbox.InTx(s.Context(), db.DB, func(_ *sql.Tx, events message.Publisher) error {
		for _, o := range orders {
			payload, err := json.Marshal(o)
			if err != nil {
				return err
			}
			msg := message.NewMessage(o.ID, payload)
			outbox.SetAggregate(msg, "order", o.ID, 1)
			outbox.SetEventType(msg, "OrderPlaced")
			outbox.SetTenant(msg, o.tenant)
			if err := events.Publish(placed, msg); err != nil {
				return err
			}
		}
		return nil
	}))
}

// manyOrders returns n orders. Their numbers are consecutive, and first
// is the lowest number. manyOrders calls the function edit for each order.
func manyOrders(first, n int, edit func(o *order)) (all []order) {
	for i := range n {
		o := order{ID: fmt.Sprintf("order-%04d", first+i), Cents: 1000, Currency: "USD", tenant: "acme"}
		edit(&o)
		all = append(all, o)
	}
	return all
}

// Releases of the payments service, as sets of bits. Each bit is an ability.
const (
	knowsEuros = 1 << iota
	takesAddresses
	takesLongAddresses
)

// charging is a running payments service. It quarantines an order at its first failure,
// because another attempt would not help.
type charging struct {
	db      kit.Database
	url     string
	release atomic.Int64
	stop    func()
}

func (c *charging) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, err
	}
	release := c.release.Load()
	switch {
	case o.Currency == "EUR" && release&knowsEuros == 0:
		return nil, retry.Permanent(errors.New("no exchange rate for EUR"))
	case o.Street != "" && release&takesAddresses == 0:
		return nil, retry.Permanent(errors.New("the billing address has an unknown format"))
	case len(o.Street) > 40 && release&takesLongAddresses == 0:
		return nil, retry.Permanent(errors.New("the billing address has more than 40 characters"))
	case o.Cents < 0:
		return nil, retry.Permanent(errors.New("the amount is negative"))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, cents) VALUES ($1, $2)`, o.ID, o.Cents)
	return nil, err
}

// start runs the service until stop is called or the test ends.
func (c *charging) start(t *testing.T) {
	t.Helper()
	config := amqp.NewDurablePubSubConfig(c.url, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	subscriber, err1 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: watermill.NopLogger{}})
	consumer, err2 := once.NewConsumer(c.db.DB, once.ConsumerConfig{
		Logger: watermill.NopLogger{}, Retry: retry.Config{PollInterval: 20 * time.Millisecond},
	})
	router, err3 := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	kit.OK(t, errors.Join(err1, err2, err3))
	consumer.AddHandler(router, "payments", placed, subscriber, c.handle)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := kit.Go(func() error { return once.Run(ctx, time.Minute, router, subscriber) })
	var stopped atomic.Bool
	c.stop = func() {
		if !stopped.Swap(true) {
			cancel()
			kit.Check(t, <-ended)
		}
	}
	t.Cleanup(c.stop)
	select {
	case <-router.Running():
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
}

// charges returns the number of orders that were charged.
func (c *charging) charges(t *testing.T) (n int) {
	t.Helper()
	kit.OK(t, c.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM charges`).Scan(&n))
	return n
}

// newShop returns the shells of two services, and a payments service that does not run
// yet. Each service has its own database, without tables.
func newShop(t *testing.T) (orders, payments *shell, ordersDB kit.Database, service *charging) {
	t.Helper()
	ordersDB = kit.EmptyPostgres(t)
	service = &charging{db: kit.EmptyPostgres(t), url: kit.Rabbit(t).URL}
	kit.Exec(t, service.db, `CREATE TABLE charges (order_id text PRIMARY KEY, cents integer NOT NULL)`)
	orders = &shell{T: t, env: map[string]string{
		"PROMPT": "orders", "ONCE_DSN": ordersDB.DSN, "ONCE_ACTOR": "ann", "ONCE_AMQP_URL": service.url, "ONCE_CONSUMER_DSN": service.db.DSN,
	}}
	payments = &shell{T: t, env: map[string]string{"PROMPT": "payments", "ONCE_DSN": service.db.DSN, "ONCE_ACTOR": "ann"}}
	return orders, payments, ordersDB, service
}

// loseMessage simulates a mistake at the broker: a message is sent while payments does
// not run, and then the queue of payments is purged.
func (c *charging) loseMessage(t *testing.T, send func()) {
	t.Helper()
	c.stop()
	send()
	conn, err := amqp091.Dial(c.url)
	kit.OK(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	kit.OK(t, err)
	if n, err := channel.QueuePurge(placed+"_payments", false); err != nil || n != 1 {
		t.Fatalf("%d messages were purged, %v", n, err)
	}
	c.start(t)
}

// nextRelease builds the command with one more migration, like a later release.
func nextRelease(t *testing.T) (path string) {
	t.Helper()
	return buildWith(t, fmt.Sprintf("%04d_note.sql", schema.Version()+1),
		fmt.Sprintf("-- compatible_from: %d\nALTER TABLE {audit} ADD COLUMN note text;\n", schema.Version()))
}

// day records the commands that an operator types in a day, and their output.
type day struct {
	*testing.T

	name   string // of the golden file
	text   strings.Builder
	stable []string // pairs of a text that differs between runs, and the text that replaces it in the file
}

// chapter ends the golden file, and begins the next one with an explanation.
func (d *day) chapter(name, about string) {
	d.Helper()
	if d.name != "" {
		golden(d.T, filepath.Join("day", d.name), d.text.String())
	}
	d.name = name
	d.text.Reset()
	d.note(about)
}

// note adds a note about something that happens outside of the command line.
func (d *day) note(text string) {
	for line := range strings.Lines(text) {
		d.text.WriteString("# " + strings.TrimRight(line, "\n") + "\n")
	}
	d.text.WriteString("\n")
}

// always makes the golden file contain a placeholder in place of a text that differs
// between runs.
func (d *day) always(text, placeholder string) { d.stable = append(d.stable, text, placeholder) }

// types runs a command at the prompt of a service, and records its output.
func (d *day) types(s *shell, code int, args ...string) {
	d.Helper()
	d.text.WriteString(d.block(s.env["PROMPT"], args, s.run(d.Context(), args...), code))
}

// block returns a command and its output as text.
func (d *day) block(prompt string, args []string, got result, code int) string {
	d.Helper()
	if got.code != code {
		d.Fatalf("%s$ once %s: exit code %d, want %d\n%s%s", prompt, strings.Join(args, " "), got.code, code, got.stdout, got.stderr)
	}
	line := prompt + "$ once"
	for _, arg := range args {
		if strings.ContainsAny(arg, " \"") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	text := got.stdout + got.stderr
	if args[0] == "doctor" {
		text = aboutMessages(text)
	}
	text = d.steady(line+"\n"+text) + "\n"
	if code != exitDone {
		text += fmt.Sprintf("(exit code %d)\n", code)
	}
	return text + "\n"
}

// aboutMessages leaves out the doctor's findings about the servers of the test.
func aboutMessages(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(text, "\n\n") {
		for _, name := range []string{"REFUSED:", "DEAD LETTERS:", "QUARANTINE:"} {
			if strings.HasPrefix(part, name) {
				b.WriteString(part + "\n\n")
			}
		}
	}
	return b.String() + "... (findings about the servers of this test are left out)\n"
}

// changing contains patterns of texts that differ between runs, and the texts that
// replace them.
var changing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b`), "2026-05-01 09:00:00"},
	{regexp.MustCompile(`09:00:00\.\d{3}`), "09:00:00.000"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?`), "2026-05-01T09:00:00"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( |$)`), "2026-05-01$1"},
	{regexp.MustCompile(`(  +)\S+ \S+ has (\d+ slots?) and sends to rabbitmq .*`), "${1}host-1 4711 has $2 and sends to rabbitmq mq:5672"},
	{regexp.MustCompile(`\b(\d+(ms|s|m|h))+ ago`), "9s ago"},
	{regexp.MustCompile(`(?m)  (\d+(ms|s|m|h))+$`), "  9s"},
	{regexp.MustCompile(`due for (\d+(ms|s|m|h))+`), "due for 9s"},
	{regexp.MustCompile(`(:\d\d  )\d(  +backing off)`), "${1}2$2"}, // tries
	{regexp.MustCompile(`(refused.*message "order-000)\d`), "${1}1"},
	{regexp.MustCompile(`Entry \d+ replaces`), "Entry 2001 replaces"},
	{regexp.MustCompile(`message \S+ \(entry \d+\) replaces`), "message 0197c3a2-6f1e-7cc3-98c4-dc0c0c07398f (entry 2001) replaces"},
	{regexp.MustCompile(`(?m)^replay \d+: .*\n`), ""}, // progress
	{regexp.MustCompile(`/\S+/(\w+\.\w+|sent)\b`), "$1"},
}

// steady replaces the texts that differ between runs.
func (d *day) steady(text string) string {
	text = strings.NewReplacer(d.stable...).Replace(text)
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.instead)
	}
	return strings.TrimRight(text, "\n")
}

// group returns the failure group with this error.
func (d *day) group(s *shell, text string) string {
	d.Helper()
	for _, g := range object[groupsJSON](s, exitDone, "quarantine", "groups").Groups {
		if strings.Contains(g.Error, text) {
			return g.Group
		}
	}
	d.Fatalf("no group has the error %q", text)
	return ""
}

// entry returns the ID of a message's entry. The golden file contains the placeholder
// in place of this ID.
func (d *day) entry(s *shell, messageID, placeholder string) string {
	d.Helper()
	entries := object[entriesJSON](s, exitDone, "quarantine", "list", "--message-id", messageID).Entries
	if len(entries) != 1 {
		d.Fatalf("message %s has %d entries", messageID, len(entries))
	}
	id := fmt.Sprint(entries[0].ID)
	for _, before := range []string{"show ", "edit ", "parked:", "entry ", "entry:          "} {
		d.always(before+id, before+placeholder)
	}
	return id
}
