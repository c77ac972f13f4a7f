package service_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
)

func TestSameKeySameAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		first := r.order("key", anOrder)
		second := r.order("key", anOrder)
		if first.status != http.StatusCreated || second.status != first.status || second.body != first.body ||
			second.header.Get("Location") != first.header.Get("Location") || second.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("first %+v, second %+v", first, second)
		}
		if n := r.count("orders"); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

func TestAnotherBodyUnderTheSameKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		r.order("key", anOrder)
		got := r.order("key", strings.Replace(anOrder, "Ada", "Eve", 1))
		if got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "idempotency key") {
			t.Errorf("%+v", got)
		}
		if n := r.count("orders"); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

func TestWithoutAKeyEachRequestIsAnOrder(t *testing.T) {
	t.Parallel()
	r := start(t, sqlite(t))
	first, second := r.placed(), r.placed()
	if first == second {
		t.Errorf("order %s twice", first)
	}
}

// If many requests with the same key arrive at the same time, only one places the
// order, and all get the same answer.
func TestManyAtOnceUnderOneKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database service.Database) {
		r := start(t, database)
		answers := make([]answer, 20)
		var asking sync.WaitGroup
		for i := range answers {
			asking.Go(func() { answers[i] = r.order("key", anOrder) })
		}
		asking.Wait()
		replayed := 0
		for _, a := range answers {
			if a.status != http.StatusCreated || a.body != answers[0].body {
				t.Errorf("%+v, and %+v", a, answers[0])
			}
			if a.header.Get("Idempotent-Replayed") == "true" {
				replayed++
			}
		}
		if n := r.count("orders"); n != 1 || replayed != len(answers)-1 {
			t.Errorf("%d orders, %d of %d answers repeated", n, replayed, len(answers))
		}
	})
}

// A request gets 409 if an earlier request with the same key takes too long. If the
// earlier request is rolled back, the key can be used again.
func TestKeyOfARunningRequest(t *testing.T) {
	t.Parallel()
	r := start(t, postgres(t, testenv.Postgres(t)), func(c *service.Config) { c.KeyTimeout = 50 * time.Millisecond })
	tx, err := r.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.ExecContext(t.Context(), `INSERT INTO once_idempotency_keys (client, key, digest) VALUES ('', 'key', '')`)
	if err != nil {
		t.Fatal(err)
	}
	got := r.order("key", anOrder)
	if got.status != http.StatusConflict || got.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", got)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the key can be used", func() bool {
		return r.order("key", anOrder).status == http.StatusCreated
	})
}
