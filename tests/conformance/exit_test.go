package conformance

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// neighbours arrive around a message that ends the process.
const neighbours = 20

// A message whose handler calls os.Exit is in quarantine when its budget is
// used up; messages that were prefetched or claimed with it are not, and the
// rest of the queue went through.
func TestTrap48AMessageThatExitsEndsInQuarantine(t *testing.T) {
	test := func(t *testing.T, db testkit.Database, l life, put func(w *world, id string), waiting func() int) {
		w := newWorld(t, db)
		l.Dialect, l.DSN = db.Dialect, db.DSN
		var ids []string
		for n := range neighbours {
			if n == 3 {
				put(w, killer)
			}
			id := fmt.Sprintf("m%02d", n)
			ids = append(ids, id)
			put(w, id)
		}
		crashes := 0
		for p := begin(t, l); ; p = begin(t, l) {
			testkit.Eventually(t, patience, "it has ended, or has nothing more to do", func() bool {
				return p.over() || w.settled() && waiting() == 0 && w.count(`effects`) == neighbours
			})
			if !p.over() {
				p.stop(t)
				break
			}
			if status := p.end(t); status.ExitStatus() != exitStatus {
				t.Fatalf("the process ended with %v", status)
			}
			if crashes++; crashes > 3*crashBudget {
				t.Fatalf("the process ended %d times", crashes)
			}
		}
		w.once(ids...)
		if n := w.count(`once_parked`); n != 1 || w.count(`once_parked WHERE message_id = 'killer' AND reason = 'crashed'`) != 1 {
			t.Errorf("%d parked rows are left", n)
		}
		// A broker's first delivery is not counted yet, unless it is stored first.
		if most := crashBudget + 1; crashes < crashBudget || crashes > most {
			t.Errorf("the process ended %d times, want %d or %d", crashes, crashBudget, most)
		}
	}
	for name, l := range map[string]life{
		"queue": {Transport: "queue"}, "local": {Transport: "local"}, "queue, durable": {Transport: "queue", Durable: true},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				test(t, db, l, func(w *world, id string) { w.put(l.Transport, id) }, func() int { return 0 })
			})
		})
	}
	rabbit := func(t *testing.T, durable bool) {
		broker := testkit.Rabbit(t)
		conn, err := amqp.Dial(broker.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		channel, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		queue := broker.Name("payments")
		if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = channel.QueueDelete(queue, false, false, false) }()
		put := func(_ *world, id string) {
			if err := channel.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{MessageId: id}); err != nil {
				t.Fatal(err)
			}
		}
		waiting := func() int {
			state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			return state.Messages
		}
		test(t, testkit.Postgres(t), life{Transport: broker.URL, Queue: queue, Durable: durable}, put, waiting)
	}
	t.Run("rabbit", func(t *testing.T) { rabbit(t, false) })
	t.Run("rabbit, durable", func(t *testing.T) { rabbit(t, true) })
}
