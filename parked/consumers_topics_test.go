package parked_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/parked"
)

// A consumer of two topics is shown twice, each time with its own registration, instances
// and messages.
func TestConsumerOfTwoTopicsIsShownForEach(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for topic, messages := range map[string]int{"t": 1, "u": 2} {
			b.register(store.Consumer{Consumer: "c", Topic: topic, Handler: "handler of " + topic, Owner: "host/1/" + topic})
			for n := range messages {
				if err := b.store.Deliver(b.Context(), topic, []string{"c"}, msg(fmt.Sprint(topic, n), "")); err != nil {
					b.Fatal(err)
				}
			}
			b.exec(`UPDATE once_parked SET due_at = `+b.fromNow(-time.Duration(messages)*time.Hour)+` WHERE topic = $1`, topic)
		}
		var got []string
		for _, c := range b.consumers() {
			var owners []string
			for _, i := range c.Instances {
				owners = append(owners, i.Owner)
			}
			got = append(got, fmt.Sprintf("%s %s %s %v %d %v", c.Name, c.Topic, c.Handler, owners, c.Waiting, c.Lag.Round(time.Hour)))
		}
		if want := []string{"c t handler of t [host/1/t] 1 1h0m0s", "c u handler of u [host/1/u] 2 2h0m0s"}; !slices.Equal(got, want) {
			b.Errorf("the consumers are %q, want %q", got, want)
		}
	})
}

// A consumer runs if any of its instances runs, whichever started first.
func TestConsumerRunsIfAnInstanceRuns(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for n, owner := range []string{"a", "b", "c"} {
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: owner})
			b.exec(`UPDATE once_consumer_instances SET started_at = `+b.fromNow(time.Duration(n)*time.Minute)+` WHERE owner = $1`, owner)
		}
		for running, want := range map[string]bool{"a": true, "b": true, "c": true, "none": false} {
			b.exec(`UPDATE once_consumer_instances SET seen_at = `+b.fromNow(-10*time.Minute)+` WHERE owner <> $1`, running)
			b.exec(`UPDATE once_consumer_instances SET seen_at = `+b.fromNow(0)+` WHERE owner = $1`, running)
			if got := b.consumers()[0].Running; got != want {
				b.Errorf("%s runs: the consumer is running: %t, want %t", running, got, want)
			}
		}
	})
}

// The limit also applies to the sum of claimed and other messages.
func TestSumsOfConsumersStopAtTheLimit(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(parked.CountLimit+500, "busy")
		b.exec(`UPDATE once_parked SET priority_class = 'retry', attempts = 1, crashes = id % 2`)
		c := b.consumers()[0]
		if c.Waiting != parked.CountLimit || c.Failing != parked.CountLimit {
			b.Errorf("%d messages wait, %d have failed; want %d of each", c.Waiting, c.Failing, parked.CountLimit)
		}
	})
}

// A consumer has messages if one of its messages waits, is claimed, is held or is in
// quarantine. Messages of another topic or another consumer do not count.
func TestConsumerWithOneMessageIsNotEmpty(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for set, state := range map[string]string{
			`crashes = 0`:                        "waiting",
			`crashes = 1`:                        "waiting", // claimed
			`state = 'held', ordering_key = 'k'`: "held",
			`state = 'quarantined'`:              "quarantined",
		} {
			b.exec(`DELETE FROM once_parked`)
			for n, to := range [][2]string{{consumer, topic}, {consumer, "else"}, {"another", topic}} {
				if err := b.store.Deliver(b.Context(), to[1], []string{to[0]}, msg(fmt.Sprint("m", n), "")); err != nil {
					b.Fatal(err)
				}
			}
			b.exec(`UPDATE once_parked SET ` + set)
			b.register(store.Consumer{Consumer: consumer, Topic: topic, Owner: "host/1/a"})
			b.exec(`UPDATE once_consumers SET seen_at = ` + b.fromNow(-time.Hour))
			err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{})
			want := "the consumer has messages: " + state + "; cancel or discard"
			if !errors.Is(err, parked.ErrNotEmpty) || !strings.Contains(err.Error(), want) {
				b.Errorf("%s: got %v, want %q", set, err, want)
			}
			b.exec(`DELETE FROM once_parked WHERE message_id = 'm0'`)
			if err := b.messages.RemoveConsumer(b.Context(), ann, consumer, topic, parked.RemoveOptions{}); err != nil {
				b.Errorf("%s: only others have messages: %v", set, err)
			}
		}
	})
}
