package recipes

import (
	"context"
	"errors"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"
	"gorm.io/gorm"

	"github.com/watermill-once/once/outbox"
)

// Events contains the events that an object has recorded and that are not committed
// yet. Embed it in your domain objects. After a rollback, the events stay and keep
// their ids, so that the object can be saved again.
type Events struct {
	recorded []recorded
}

type recorded struct {
	topic string
	msg   *message.Message
}

// Record adds an event. Saving the object stores the event in the outbox.
func (e *Events) Record(topic string, msg *message.Message) {
	e.recorded = append(e.recorded, recorded{topic, msg})
}

func (e *Events) events() *Events { return e }

// Transaction calls the function work in a transaction of GORM. The events of the objects
// that the function creates, updates or deletes are stored in the same transaction. After
// the commit the events are removed from the objects. Call RegisterEvents for db first.
func Transaction(ctx context.Context, db *gorm.DB, work func(tx *gorm.DB) error) error {
	s := &saved{published: map[*Events]int{}}
	err := db.WithContext(context.WithValue(ctx, savedKey{}, s)).Transaction(work)
	if err != nil {
		return err
	}
	for events, n := range s.published {
		events.recorded = events.recorded[n:]
	}
	return nil
}

// saved contains the objects that a transaction has saved, and how many of their events
// it has stored.
type saved struct {
	published map[*Events]int
}

type savedKey struct{}

var errNoTransaction = errors.New("an object with events is saved outside of recipes.Transaction, which would lose them")

// RegisterEvents makes db store the events of each object that it saves. It requires
// gorm.Config.DisableNestedTransaction, because the rollback of a nested transaction
// would remove events that Transaction counts as stored.
func RegisterEvents(db *gorm.DB) error {
	if !db.DisableNestedTransaction {
		return errors.New("gorm.Config.DisableNestedTransaction is false: the rollback of a nested transaction would lose events")
	}
	c := db.Callback()
	return errors.Join(
		c.Create().After("gorm:after_create").Before("gorm:commit_or_rollback_transaction").Register("events", publishEvents),
		c.Update().After("gorm:after_update").Before("gorm:commit_or_rollback_transaction").Register("events", publishEvents),
		c.Delete().After("gorm:after_delete").Before("gorm:commit_or_rollback_transaction").Register("events", publishEvents),
	)
}

func publishEvents(db *gorm.DB) {
	if db.Error != nil {
		return
	}
	for _, events := range eventsOf(db.Statement.ReflectValue) {
		s, ok := db.Statement.Context.Value(savedKey{}).(*saved)
		if !ok {
			if len(events.recorded) > 0 {
				_ = db.AddError(errNoTransaction)
			}
			return
		}
		tx, err := gormTx(db)
		if err != nil {
			_ = db.AddError(err)
			return
		}
		publisher := outbox.Publisher(tx)
		for _, e := range events.recorded[s.published[events]:] {
			if err := publisher.Publish(e.topic, e.msg); err != nil {
				_ = db.AddError(err)
				return
			}
			s.published[events]++
		}
	}
}

// eventsOf returns the events of an object, or of each object of a slice.
func eventsOf(value reflect.Value) (all []*Events) {
	if kind := value.Kind(); kind == reflect.Slice || kind == reflect.Array {
		for i := range value.Len() {
			all = append(all, eventsOf(reflect.Indirect(value.Index(i)))...)
		}
		return all
	}
	if value.CanAddr() {
		if object, ok := reflect.TypeAssert[interface{ events() *Events }](value.Addr()); ok {
			all = append(all, object.events())
		}
	}
	return all
}
