package roles

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// part is a part of a service. Its database user has only the role of this part.
type part struct {
	*world
	*recorder

	db *sql.DB
}

func (w *world) part(name string) *part {
	w.Helper()
	r := new(recorder)
	p := &part{w, r, w.open(r, name)}
	if err := schema.Check(w.Context(), p.db, tables); err != nil {
		w.Fatalf("%s: %v", name, err)
	}
	return p
}

// Each part can do all of its work with its role. If any of its rights is missing, a statement
// fails.
func TestEachRoleNeedsEveryRight(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	w := newWorld(t)
	at := map[string]*part{}
	for _, name := range parts {
		at[name] = w.part(name)
	}
	at["producer"].produce()
	at["forwarder"].forward()
	end := at["consumer"].consume()
	at["operator"].operate()
	end()
	at["watcher"].watch()
	for _, name := range parts {
		at[name].permitted()
	}
	if t.Failed() {
		return
	}
	for _, name := range parts {
		at[name].needsEverything(name)
	}
}

// permitted fails the test if a statement was denied. Background work only
// retries, so a denied statement would otherwise appear as a timeout.
func (p *part) permitted() {
	p.Helper()
	for _, text := range p.denied() {
		p.Error(text)
	}
	if p.Failed() {
		p.FailNow()
	}
}

// awaitNumber waits until a query returns the number want.
func (p *part) awaitNumber(want int, query string) {
	p.Helper()
	kit.Eventually(p.T, time.Minute, fmt.Sprintf("%d is %s (denied: %v)", want, query, p.denied()), func() bool {
		return len(p.denied()) > 0 || p.number(query) == want
	})
	p.permitted()
}

func event(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(msg, key)
	}
	return msg
}

func (p *part) publish(topic string, msgs ...*message.Message) {
	p.Helper()
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err == nil {
		err = box.InTx(p.Context(), p.db, func(_ *sql.Tx, events message.Publisher) error { return events.Publish(topic, msgs...) })
	}
	kit.OK(p, err)
}

// produce publishes messages for every outcome of the forwarder.
func (p *part) produce() {
	p.Helper()
	later := event("later", "")
	outbox.SetDueAt(later, time.Now().Add(200*time.Millisecond))
	p.publish("fine", event("1", ""), event("2", "key"), event("3", "key"), later)
	p.publish("refused once", event("4", "other key"), event("5", ""))
	p.publish("unacceptable", event("6", "dead key"), event("7", "dead key too"), event("8", ""))
	p.publish("fine", event("9", "dead key"), event("10", "dead key too"), event("11", "other key"))
	p.publish("fine", event("12", "ends"))
	p.answer()
}

// answer handles a request with an idempotency key twice, and deletes old keys.
func (p *part) answer() {
	p.Helper()
	keys, err := idempotency.New(p.db, idempotency.Config{Schema: tables, Client: idempotency.OneClient})
	kit.OK(p, err)
	h := keys.Handler(func(http.ResponseWriter, *http.Request, *sql.Tx) error { return nil })
	for range 2 {
		request := httptest.NewRequestWithContext(p.Context(), http.MethodPost, "/", http.NoBody)
		request.Header.Set(idempotency.Header, "key")
		answer := httptest.NewRecorder()
		if h.ServeHTTP(answer, request); answer.Code != http.StatusOK {
			p.Fatal(answer.Body)
		}
	}
	kit.OK(p, kit.Err(keys.Sweep(p.Context())))
}
