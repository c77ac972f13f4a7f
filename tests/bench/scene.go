package main

import (
	"context"
	"errors"
	"io"

	"github.com/watermill-once/once/schema"
)

// scene is a new database and a new queue, for one measurement.
type scene struct {
	db    *database // with the tables of this module
	queue *queue
}

func (b *bench) newScene(ctx context.Context, kind string) (*scene, error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return nil, err
	}
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	q, err := newQueue(b.amqpURL, kind)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &scene{db: db, queue: q}, nil
}

// Close deletes the database and the queue.
func (s *scene) Close() error { return errors.Join(s.queue.Close(), s.db.Close()) }

// closing closes c, and adds its error to err.
func closing(c io.Closer, err *error) {
	if failed := c.Close(); failed != nil {
		*err = errors.Join(*err, failed)
	}
}
