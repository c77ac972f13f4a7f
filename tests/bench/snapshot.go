package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// snapshots measures whether forwarding slows down while an open snapshot prevents
// PostgreSQL from removing dead rows.
func (b *bench) snapshots(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	none := series{
		id: "snapshot-none", unit: perSecond,
		what: fmt.Sprintf("forwarder beside a stream of inserts for %v, %s", b.baseline, kind),
	}
	held := series{
		id: "snapshot-held", unit: perSecond,
		what: fmt.Sprintf("the same for %v, while another session holds a snapshot", b.hold),
	}
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.streamed(ctx, kind, b.baseline, false) }),
		single(&held, func(ctx context.Context) (float64, error) { return b.streamed(ctx, kind, b.hold, true) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), held.against(none, 0.8)}, nil
}

// streamed measures how many messages per second are confirmed during a period. Messages
// are written during the whole period, so that some always wait in the outbox. If the
// parameter hold is true, another transaction keeps a snapshot open.
func (b *bench) streamed(ctx context.Context, kind string, period time.Duration, hold bool) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fill(ctx, b.ahead, 0); err != nil {
		return 0, err
	}
	f, err := s.forward(b.ahead / 2)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	stream := s.keepAhead(ctx, b.ahead, f.publisher.confirmed.Load)
	defer closing(stream, &err)
	f.start(ctx)
	if err := f.await(ctx); err != nil { // wait until messages flow
		return 0, err
	}
	if hold {
		tx, err := s.holdSnapshot(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback() //nolint:errcheck // it has written nothing
	}

	before, start := f.publisher.confirmed.Load(), time.Now()
	end := time.NewTimer(period)
	defer end.Stop()
	select {
	case <-end.C:
	case <-stream.ended:
		return 0, errors.New("the stream of inserts ended")
	case err := <-f.ended:
		f.ended <- err
		return 0, errors.Join(errors.New("the forwarder ended"), err)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	confirmed, took := f.publisher.confirmed.Load(), time.Since(start)

	if err := stream.Close(); err != nil {
		return 0, err
	}
	if stream.starved > 0 {
		fmt.Fprintf(b.progress, "the outbox ran empty %d times: inserting was what limited the rate\n", stream.starved)
	}
	return rate(int(confirmed-before), took), s.queue.awaitMessages(ctx, int(confirmed))
}

func (s *scene) holdSnapshot(ctx context.Context) (*sql.Tx, error) {
	tx, err := s.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	var count int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM once_slots`).Scan(&count); err != nil { // takes the snapshot
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}
