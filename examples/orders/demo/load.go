package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// clients is the number of clients that place orders at the same time.
const clients = 8

// load places orders and records the answers.
type load struct {
	client Client
	faults *Faults // nil means that no faults are injected

	prefix string // prefix of the Idempotency-Keys of this run

	mu      sync.Mutex
	journal []string // ids of the orders whose clients got a 201
	errs    []error
}

func newLoad(url string, faults *Faults) *load {
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * clients}
	return &load{
		client: Client{URL: url, HTTP: &http.Client{Transport: transport}},
		faults: faults,
		prefix: "demo-" + rand.Text()[:10],
	}
}

// place places n orders. It calls the function atHalf before it places the order in the
// middle.
func (l *load) place(ctx context.Context, n int, atHalf func() error) {
	defer l.client.HTTP.CloseIdleConnections()
	next := make(chan int)
	var working sync.WaitGroup
	for range clients {
		working.Go(func() {
			for i := range next {
				if i == n/2 {
					l.note(atHalf())
				}
				l.note(l.placeOne(ctx, i))
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	working.Wait()
}

func (l *load) placeOne(ctx context.Context, n int) error {
	order := content(n)
	l.faults.poison(n, &order)
	body, err := json.Marshal(order)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s-%d", l.prefix, n)

	// A client may repeat its request before it has got the first answer.
	var second string
	var secondErr error
	var repeating sync.WaitGroup
	if l.faults.repeats(n) {
		repeating.Go(func() { second, secondErr = l.client.Place(ctx, key, body) })
	}
	id, err := l.client.Place(ctx, key, body)
	repeating.Wait()
	switch {
	case err != nil:
		return err
	case secondErr != nil:
		return secondErr
	case second != "" && second != id:
		return fmt.Errorf("demo: key %s was answered with order %s and with order %s", key, id, second)
	}
	l.mu.Lock()
	l.journal = append(l.journal, id)
	l.mu.Unlock()
	if l.faults.reuses(n) {
		return l.reuse(ctx, key)
	}
	return nil
}

// reuse sends another body with a key that was used before. The service must refuse
// this.
func (l *load) reuse(ctx context.Context, key string) error {
	status, _, err := l.client.post(ctx, key, []byte(
		`{"shop":"berlin","customer":"somebody else","currency":"EUR","lines":[{"sku":"tea","quantity":1,"unit_price":1}]}`))
	if err == nil && status != http.StatusUnprocessableEntity {
		err = fmt.Errorf("demo: another body under key %s was answered with %d, not 422", key, status)
	}
	return err
}

func (l *load) note(err error) {
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.errs = append(l.errs, err)
	}
}
