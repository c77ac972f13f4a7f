package deadletter_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/schema"
)

func TestSweepDaysSaysWhyItCannotSweep(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		if _, err := b.log.SweepDays(b.Context(), time.Hour); !errors.Is(err, deadletter.ErrNotByDay) {
			b.Errorf("a plain log: %v", err)
		}
		_, err := b.log.SweepDays(b.Context(), time.Second)
		if err == nil || !strings.Contains(err.Error(), "keep is 1s: must be at least a minute") {
			b.Errorf("a second: %v", err)
		}
		if b.sqlite() {
			return
		}
		if err := schema.Up(b.Context(), b.db, schema.Config{Sent: schema.ByDay}); err != nil {
			b.Fatal(err)
		}
		if n, err := b.log.SweepDays(b.Context(), time.Hour); n != 0 || err != nil {
			b.Errorf("the owner: %d days, %v", n, err)
		}
		b.db.SetMaxOpenConns(1)
		b.exec(`SET ROLE pg_read_all_data`)
		_, err = b.log.SweepDays(b.Context(), time.Hour)
		b.exec(`RESET ROLE`)
		if !errors.Is(err, deadletter.ErrNotOwner) {
			b.Errorf("another user: %v", err)
		}
	})
}
