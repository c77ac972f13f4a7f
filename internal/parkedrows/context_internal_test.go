package parkedrows

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestFailedBeforeCountsAttemptsAndCrashes(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("m", nil)
	claimed := func(c *Claim) context.Context { return WithDelivery(t.Context(), &Delivery{Claim: c}) }
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{
		"first delivery":          {t.Context(), false},
		"first try":               {WithTried(t.Context(), msg, false), false},
		"second try":              {WithTried(t.Context(), msg, true), true},
		"first claim":             {claimed(&Claim{Crashes: 1}), false}, // the crash that this claim counts in advance
		"claim after a crash":     {claimed(&Claim{Crashes: 2}), true},
		"claim after an attempt":  {claimed(&Claim{Attempts: 1}), true},
		"first try of such a row": {WithTried(claimed(&Claim{Attempts: 1}), msg, false), true},
	} {
		if got := FailedBefore(c.ctx); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	ctx := WithTried(t.Context(), msg, false)
	if !Tried(ctx, msg) || Tried(ctx, msg.Copy()) || Tried(t.Context(), msg) {
		t.Error("a message is not told from one whose handler passes its context on")
	}
}

// The consumer is woken only if its transaction has made a row due.
func TestCommittedWakesTheConsumerIfARowIsDue(t *testing.T) {
	t.Parallel()
	woken := 0
	d := &Delivery{Wake: func() { woken++ }}
	if d.Committed(); woken != 0 {
		t.Error("woken although nothing is due")
	}
	d.MakesDue()
	if d.Committed(); woken != 1 {
		t.Errorf("woken %d times, want once", woken)
	}
	d = &Delivery{}
	d.MakesDue()
	d.Committed() // there is no consumer to wake
}

func TestShutdownIsNotTheFailureOfAHandler(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	for name, c := range map[string]struct {
		d    *Delivery
		ctx  context.Context
		want bool
	}{
		"none":                    {&Delivery{}, t.Context(), false},
		"the consumer closes":     {&Delivery{Closing: closing}, t.Context(), true},
		"the context is canceled": {&Delivery{Closing: make(chan struct{})}, cancelled, true},
		"a deadline":              {&Delivery{}, late, false},
	} {
		if got := c.d.ShuttingDown(c.ctx); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A middleware may end the context of a message early. This is not the end of the
// subscription, and the outcome of the message must still be stored.
func TestContextOfAMiddlewareDoesNotEndTheSubscription(t *testing.T) {
	t.Parallel()
	d := &Delivery{}
	subscription, end := context.WithCancel(t.Context())
	ctx, cancel := context.WithCancel(WithDelivery(subscription, d))
	cancel()
	if d.ShuttingDown(ctx) || !d.Sleep(ctx, time.Nanosecond) {
		t.Error("the end of the context counts as the end of the subscription")
	}
	end()
	ctx = context.WithoutCancel(ctx)
	if !d.ShuttingDown(ctx) || d.Sleep(ctx, time.Hour) {
		t.Error("the end of the subscription is not noticed")
	}
}

func TestAgeIncludesTheTimeSinceTheClaim(t *testing.T) {
	t.Parallel()
	c := &Claim{age: time.Hour, claimed: time.Now().Add(-time.Minute)}
	if got := c.Age(); got < 61*time.Minute || got > 62*time.Minute {
		t.Errorf("the age is %v, want 1h1m", got)
	}
}

func TestLeaseEndsAtItsTime(t *testing.T) {
	t.Parallel()
	c := &Claim{ID: 7}
	d := &Delivery{Claim: c}
	if c.Leased() || !errors.Is(d.CheckLease(), ErrClaimLost) {
		t.Error("a claim without a lease counts as leased")
	}
	if c.setLease(time.Now(), time.Hour); !c.Leased() || d.CheckLease() != nil {
		t.Error("the lease does not last")
	}
	if c.setLease(time.Now().Add(-time.Hour), time.Hour); c.Leased() {
		t.Error("the lease has not ended")
	}
	if err := (&Delivery{}).CheckLease(); err != nil {
		t.Errorf("a message from the transport has no lease: %v", err)
	}
}

// Only the context of the handler contains the transaction and the values that belong
// to it.
func TestContextHasTheTransactionOfItsMessage(t *testing.T) {
	t.Parallel()
	type key struct{}
	tx := &sql.Tx{}
	c := WithTx(context.WithValue(t.Context(), key{}, "v"), tx)
	ctx := context.WithValue(c, triedKey, nil) // a handler may derive a context in this way
	if got, ok := TxOf(ctx); !ok || got != tx || ctx.Value(key{}) != "v" {
		t.Errorf("%v, %t, and %v of the context before", got, ok, ctx.Value(key{}))
	}
	if got, ok := TxOf(t.Context()); ok || got != nil {
		t.Errorf("%v, %t without a transaction", got, ok)
	}
	var marked []*message.Message
	msg := message.NewMessage("m", nil)
	Mark(t.Context(), msg)
	Mark(ctx, msg) // several messages are handled together
	c.Mark = func(msg *message.Message) { marked = append(marked, msg) }
	if Mark(ctx, msg); len(marked) != 1 || marked[0] != msg {
		t.Errorf("marked %v", marked)
	}
	var called []int
	for n := range 2 {
		kit.Check(t, AfterCommit(ctx, func() { called = append(called, n) }))
	}
	if err := AfterCommit(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "pass the context that the handler got") {
		t.Errorf("without a transaction: %v", err)
	}
	for _, f := range c.End() {
		f()
	}
	if !slices.Equal(called, []int{0, 1}) {
		t.Errorf("called %v", called)
	}
	if err := AfterCommit(ctx, func() {}); err == nil || !strings.Contains(err.Error(), "call AfterCommit before that") {
		t.Errorf("after the handler: %v", err)
	}
}

func TestSubscriptionIsFoundInItsContext(t *testing.T) {
	t.Parallel()
	if s, ok := SubscriptionOf(WithSubscription(t.Context(), Subscription{Consumer: "c"})); !ok || s.Consumer != "c" {
		t.Errorf("%+v, %t", s, ok)
	}
	if s, ok := SubscriptionOf(t.Context()); ok {
		t.Errorf("%+v in another context", s)
	}
}

func TestClaimRemembersItsMiddlewareAndItsResult(t *testing.T) {
	t.Parallel()
	c := &Claim{}
	if c.Managed() || c.Handled() || c.Settled() {
		t.Error("a new claim is managed, handled or settled")
	}
	if c.Manage(); !c.Managed() || c.Handled() {
		t.Error("it is not managed, or handled")
	}
	if c.Handle(); !c.Handled() || c.Settled() {
		t.Error("it is not handled, or settled")
	}
}

func TestStoreWithoutADatabaseIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := NewStore(nil, schema.Config{}); err == nil || err.Error() != "db is nil" {
		t.Errorf("got %v", err)
	}
	if _, err := NewStore(kit.SQLite(t).DB, schema.Config{Dialect: "oracle"}); err == nil {
		t.Error("an unknown dialect is accepted")
	}
}

func TestTenantIsNullInTheInboxIfThereIsNone(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("m", nil)
	if got := Tenant(msg); got != nil {
		t.Errorf("got %v", got)
	}
	if msg.Metadata[meta.TenantID] = "acme"; Tenant(msg) != "acme" {
		t.Errorf("got %v", Tenant(msg))
	}
}

// A consumer name can be reserved again when the subscription that reserved it has
// ended. Two subscriptions can have the same name at the same time if both allow
// sharing.
func TestNameIsReservedWhileItsSubscriptionRuns(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	s, err := NewStore(db.DB, schema.Config{Dialect: schema.SQLite})
	kit.OK(t, err)
	again, err := NewStore(db.DB, schema.Config{Dialect: schema.SQLite})
	kit.OK(t, err)
	other, err := NewStore(db.DB, schema.Config{Dialect: schema.SQLite, Prefix: "other_"})
	kit.OK(t, err)
	over := make(chan struct{})
	use, drop, err := s.Use("c", "t", false, over)
	kit.OK(t, err)
	refused := func(want string, shared bool) {
		t.Helper()
		if _, _, err := again.Use("c", "t", shared, nil); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	refused(`consumer "c" is already used by another handler of this process on topic "t"`, true)
	if use.Handler() != "" || (*Use)(nil).Handler() != "" {
		t.Error("the handler is known before its first message")
	}
	(*Use)(nil).By(t.Context())
	if use.By(t.Context()); use.Handler() != "" {
		t.Errorf("the handler is %q", use.Handler())
	}
	name := "h1"
	use.handler.Store(&name)
	refused(`consumer "c" is already used by handler "h1" on topic "t"`, false)
	if !again.Runs("c", "t") || again.Runs("c", "u") || other.Runs("c", "t") {
		t.Error("another name runs, or the own one does not")
	}
	close(over)
	if s.Runs("c", "t") {
		t.Error("a subscription that has ended runs")
	}
	drop()
	if n := len(s.process.uses); n != 0 {
		t.Errorf("%d names are left", n)
	}
	_, drop, err = s.Use("c", "t", true, make(chan struct{}))
	kit.OK(t, err)
	_, dropShared, err := again.Use("c", "t", true, make(chan struct{}))
	if err != nil {
		t.Errorf("both are shared: %v", err)
	}
	refused(`consumer "c" is already used by another handler of this process on topic "t"`, false)
	drop()
	if !s.Runs("c", "t") {
		t.Error("the other one has ended, too")
	}
	dropShared()
}
