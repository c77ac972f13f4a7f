package main

import (
	"context"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestCostIsThatOfTheServer(t *testing.T) {
	db := kit.Postgres(t)
	s := findServers(db.DSN, kit.Rabbit(t).URL)
	if s.postgres == 0 || s.broker == 0 {
		t.Skip("the servers run on another machine, or as another user")
	}
	w := &costMeter{serverProcesses: s}
	end := measureCost(context.WithValue(t.Context(), costKey{}, w))
	began := time.Now()
	kit.Exec(t, db, `DO $$ DECLARE n int; BEGIN FOR n IN 1..3000000 LOOP END LOOP; END $$`)
	took := time.Since(began)
	end(10)
	c, ok := w.cost()
	if least := 10 * time.Millisecond; !ok || c.Postgres < float64(least.Microseconds())/10 || c.Broker < 0 || c.Go < 0 {
		t.Errorf("the cost is %+v after a statement of %v", c, took)
	}
}

func TestCostIsTheMedianOfTheRuns(t *testing.T) {
	if c := medianCost(nil); c != nil {
		t.Errorf("no run has a cost of %v", c)
	}
	got := medianCost([]cost{{30, 1, -1}, {10, 3, -1}, {20, 2, -1}})
	if *got != (cost{20, 2, -1}) || got.String() != "20/2/?" {
		t.Errorf("got %v", got)
	}
}

func TestOnlyMeasurementsOfMessagesHaveACost(t *testing.T) {
	measureCost(t.Context())(1) // outside of a measurement
	if c, ok := new(costMeter).cost(); ok {
		t.Errorf("got %v", c)
	}
}
