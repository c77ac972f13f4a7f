package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// topics checks that the broker can be reached, and that it has an exchange or a queue
// for each topic of the waiting messages and the dead letters.
func (d *doctor) topics(ctx context.Context) (found []finding, err error) {
	conn, err := amqp091.DialConfig(d.app.settings.amqpURL, amqp091.Config{Dial: amqp091.DefaultDial(connectTimeout)})
	if err != nil {
		return []finding{{
			What: "The broker does not accept the connection: " + d.app.hide(err.Error()),
			Why:  "Forwarders and consumers with this address cannot work.",
			Do:   "Check address, user, password and virtual host in ONCE_AMQP_URL, and whether the broker runs.",
		}}, nil
	}
	defer func() { err = errors.Join(err, conn.CloseDeadline(time.Now().Add(connectTimeout))) }()
	topics, err := d.db.topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, topic := range topics {
		missing, err := d.missing(conn, topic)
		if err != nil {
			return found, err
		}
		if missing != "" {
			found = append(found, finding{
				What: fmt.Sprintf("Topic %q has messages in the outbox or among the dead letters, and the broker has no %s.", topic, missing),
				Why:  "The broker refuses the messages of this topic until its consumers' queue exists.",
				Do:   "Start a consumer of the topic, which declares its queue, or check --topology and --amqp-prefix.",
			})
		}
	}
	return found, nil
}

// missing checks whether the broker has the exchange or the queue for the topic. It
// returns the kind and the name of a missing one, or "".
func (d *doctor) missing(conn *amqp091.Connection, topic string) (string, error) {
	channel, err := conn.Channel() // each topic needs a new channel, because the broker closes the channel if the name does not exist
	if err != nil {
		return "", err
	}
	name, kind := d.broker.namePrefix+topic, "exchange"
	if d.broker.topology == topologyQueue {
		kind = "queue"
		_, err = channel.QueueDeclarePassive(name, true, false, false, false, nil)
	} else {
		err = channel.ExchangeDeclarePassive(name, amqp091.ExchangeFanout, true, false, false, false, nil)
	}
	if refused, ok := errors.AsType[*amqp091.Error](err); ok && refused.Code == amqp091.NotFound {
		return fmt.Sprintf("%s %q", kind, name), nil
	}
	if err != nil {
		return "", err
	}
	return "", channel.Close()
}

// topics returns the topics of the first messages in the outbox, and of the latest dead
// letters.
func (d database) topics(ctx context.Context) (all []string, err error) {
	rows, err := d.QueryContext(ctx,
		`SELECT topic FROM (SELECT topic FROM `+d.table("outbox")+` ORDER BY position LIMIT 10000) AS o
		 UNION SELECT topic FROM (SELECT topic FROM `+d.table("outbox_dead")+` ORDER BY id DESC LIMIT 10000) AS d ORDER BY topic`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var topic string
		if err := rows.Scan(&topic); err != nil {
			return nil, err
		}
		all = append(all, topic)
	}
	return all, rows.Err()
}
