package rabbit

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The close of a connection is attributed to a message only if no other message of the
// connection can be the cause. The close of a channel concerns only its own messages.
func TestCloseIsAttributedOnlyIfNoOtherMessageCanBeTheCause(t *testing.T) {
	t.Parallel()
	connection := func(code int, text string) *amqp.Error {
		return &amqp.Error{Code: code, Reason: text, Server: true}
	}
	channel := func(code int, text string) *amqp.Error {
		return &amqp.Error{Code: code, Reason: text, Server: true, Recover: true}
	}
	for _, c := range []struct {
		reason      *amqp.Error
		alone, busy error // the outcome if the message is the only one on the connection, and the outcome if it is not
	}{
		{channel(amqp.ContentTooLarge, ""), ErrTooLarge, ErrTooLarge},
		{channel(amqp.PreconditionFailed, "message size 2000 is larger than configured max size 1000"), ErrTooLarge, ErrTooLarge},
		{channel(amqp.PreconditionFailed, "user_id property set to 'x' but authenticated user was 'y'"), ErrRefused, ErrRefused},
		{channel(amqp.NotFound, "no exchange"), ErrRefused, ErrRefused},
		{connection(amqp.FrameError, ""), ErrInvalid, ErrUnknown},
		{connection(amqp.SyntaxError, ""), ErrInvalid, ErrUnknown},
		{connection(amqp.UnexpectedFrame, ""), ErrInvalid, ErrUnknown},
		{connection(amqp.ConnectionForced, "maintenance"), ErrUnknown, ErrUnknown},
		{connection(amqp.InternalError, ""), ErrUnknown, ErrUnknown},
	} {
		for alone, want := range map[bool]error{true: c.alone, false: c.busy} {
			if got := attributedKind(c.reason, alone); !errors.Is(got, want) {
				t.Errorf("%v, alone: %t: got %v, want %v", c.reason, alone, got, want)
			}
		}
	}
}

func TestOtherChannelsOfTheConnectionCountIfTheyWait(t *testing.T) {
	t.Parallel()
	session, another := &session{}, &session{}
	ch := &confirmChannel{session: session, pending: []*publication{{number: 1}}}
	quiet := &confirmChannel{session: session, pending: []*publication{{number: 1, settled: true}}, settled: 1}
	busy := &confirmChannel{session: session, pending: []*publication{{number: 1}}}
	elsewhere := &confirmChannel{session: another, pending: []*publication{{number: 1}}}
	for _, c := range []struct {
		channels []*confirmChannel
		want     bool
	}{
		{[]*confirmChannel{ch}, true},
		{[]*confirmChannel{quiet, ch, elsewhere}, true},
		{[]*confirmChannel{quiet, ch, busy}, false},
	} {
		l := &confirmLoop{channels: c.channels}
		if got := l.isAloneOnConnection(ch); got != c.want {
			t.Errorf("of %d channels: alone is %t, want %t", len(c.channels), got, c.want)
		}
	}
}

// find must not return a settled publication. Otherwise a second response for a message
// would settle the message twice.
func TestSettledPublicationIsNotFound(t *testing.T) {
	t.Parallel()
	ch := &confirmChannel{}
	for number := range uint64(6) {
		ch.pending = append(ch.pending, &publication{number: number + 1})
	}
	for _, number := range []uint64{2, 4, 5} {
		pub := ch.find(number)
		if pub == nil || pub.number != number {
			t.Fatalf("%d is not found", number)
		}
		ch.settle(pub)
		if ch.find(number) != nil {
			t.Errorf("%d is found although it is settled", number)
		}
	}
	if n := ch.outstanding(); n != 3 {
		t.Errorf("%d are outstanding, want 3", n)
	}
	ch.trim()
	if len(ch.pending) != 6 || ch.oldest().number != 1 {
		t.Errorf("half of them are settled, and %d remain", len(ch.pending))
	}
	ch.pending[0].overdue = true
	if ch.oldest().number != 3 {
		t.Errorf("the oldest is %d, want 3", ch.oldest().number)
	}
	ch.settle(ch.find(1))
	ch.trim()
	if len(ch.pending) != 4 || ch.outstanding() != 2 || ch.find(3) == nil || ch.find(6) == nil || ch.find(7) != nil {
		t.Errorf("those at the front are settled, and %d remain, %d of them outstanding", len(ch.pending), ch.outstanding())
	}
	ch.settle(ch.find(6))
	ch.trim()
	if len(ch.pending) != 1 || ch.settled != 0 || ch.find(3) == nil {
		t.Errorf("most are settled, and %d remain, %d of them settled", len(ch.pending), ch.settled)
	}
}
