package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

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

// longestUnacked is a little more than poison.Config.UnackedWait by default, 10 minutes.
const longestUnacked = 15 * time.Minute

// defaultDeliveryLimit is the default delivery limit of quorum queues since RabbitMQ 4.
const defaultDeliveryLimit = 20

type brokerQueue struct {
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    map[string]any `json:"effective_policy_definition"`
	Consumers int            `json:"consumers"`
	Messages  int            `json:"messages"`
}

// The arguments of a queue come before its policy.
func (q brokerQueue) setting(name string) (value any, set bool) {
	if value, set = q.Arguments["x-"+name]; !set {
		value, set = q.Policy[name]
	}
	return value, set
}

func (q brokerQueue) number(name string) (n float64, set bool) {
	value, _ := q.setting(name)
	n, set = value.(float64)
	return n, set
}

func (d *doctor) queuesOf(ctx context.Context, m *management, topic string) (queues []string, err error) {
	name := d.broker.namePrefix + topic
	if d.broker.topology == topologyQueue {
		return []string{name}, m.get(ctx, new(brokerQueue), "queues", m.vhost, name)
	}
	var bindings []struct {
		Destination string `json:"destination"`
		Type        string `json:"destination_type"`
	}
	err = m.get(ctx, &bindings, "exchanges", m.vhost, name, "bindings", "source")
	for _, b := range bindings {
		if b.Type == "queue" {
			queues = append(queues, b.Destination)
		}
	}
	return queues, err
}

func (q brokerQueue) findings(name, version string) (found []finding) {
	_, deadLetters := q.setting("dead-letter-exchange")
	limit, limited := q.number("delivery-limit")
	major, _, _ := strings.Cut(version, ".")
	if release, err := strconv.Atoi(major); !limited && err == nil && release >= 4 {
		limit, limited = defaultDeliveryLimit, true
	}
	if q.Type == "quorum" && limited && limit >= 0 && !deadLetters {
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has a delivery limit of %.0f and no dead-letter exchange.", name, limit),
			Why:  "The broker drops a message that comes back more often: a consumer that dies again and again loses it.",
			Do: fmt.Sprintf(`rabbitmqctl set_policy no-limit '^%s$' '{"delivery-limit":-1}' --apply-to queues, `+
				`or declare a dead-letter exchange.`, name),
		})
	}
	if ms, set := q.number("consumer-timeout"); set && time.Duration(ms)*time.Millisecond < longestUnacked {
		timeout := time.Duration(ms) * time.Millisecond
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has a consumer timeout of %s.", name, age(timeout)),
			Why: "The broker closes the channel of a consumer that leaves a message unacked for longer, as this library does while the " +
				"database is away: all unacked messages are then delivered again.",
			Do: fmt.Sprintf("Raise consumer-timeout above %s, or lower UnackedWait in the consumer.", age(longestUnacked)),
		})
	}
	if q.Consumers == 0 {
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has no consumer, and %s.", name, counted(q.Messages, "message", "messages")),
			Why:  "Nobody handles its messages. The queue grows until an alarm stops the broker.",
			Do:   "Start its consumer. If nobody needs the queue any more, delete it.",
		})
	}
	return found
}

type brokerNode struct {
	Name      string `json:"name"`
	Running   bool   `json:"running"`
	MemAlarm  bool   `json:"mem_alarm"`
	DiskAlarm bool   `json:"disk_free_alarm"`
}

func (d *doctor) alarms(ctx context.Context) (found []finding, err error) {
	m, err := d.management()
	if err != nil {
		return nil, err
	}
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := m.get(ctx, &overview, "overview"); err != nil {
		d.skip("alarms and queues of the broker: the management API at " + m.base.Host + " cannot be read (" + d.app.hide(err.Error()) +
			"): enable the plugin rabbitmq_management, give the user the tag monitoring, or set --management-url")
		return nil, nil
	}
	var nodes []brokerNode
	if err := m.get(ctx, &nodes, "nodes"); err != nil {
		d.skip("alarms of the broker: the management API does not list the nodes (" + d.app.hide(err.Error()) +
			"): give the user the tag monitoring")
	}
	for _, node := range nodes {
		found = append(found, node.findings()...)
	}
	topics, err := d.db.topics(ctx)
	if err != nil {
		return found, err
	}
	for _, topic := range topics {
		queues, err := d.queuesOf(ctx, m, topic)
		if errors.Is(err, errAbsent) {
			continue // the check "broker" reports it
		}
		if err != nil {
			return found, err
		}
		if len(queues) == 0 {
			found = append(found, finding{
				What: fmt.Sprintf("No queue is bound to the exchange of topic %q.", topic),
				Why:  "The broker refuses the messages of this topic until its consumers' queue exists.",
				Do:   "Start a consumer of the topic, which declares and binds its queue.",
			})
		}
		for _, name := range queues {
			var queue brokerQueue
			if err := m.get(ctx, &queue, "queues", m.vhost, name); err != nil {
				return found, fmt.Errorf("queue %q: %w", name, err)
			}
			found = append(found, queue.findings(name, overview.Version)...)
		}
	}
	return found, nil
}

func (n brokerNode) findings() (found []finding) {
	add := func(what, do string) {
		found = append(found, finding{
			What: fmt.Sprintf("Node %q of the broker %s.", n.Name, what),
			Why:  "The broker stops reading from all connections that publish: forwarders wait, and the outbox grows.", Do: do,
		})
	}
	if n.MemAlarm {
		add("has a memory alarm", "Let the consumers drain the queues, or raise vm_memory_high_watermark.")
	}
	if n.DiskAlarm {
		add("has a disk alarm", "Free disk space, or lower disk_free_limit.")
	}
	if !n.Running {
		found = append(found, finding{
			What: fmt.Sprintf("Node %q of the broker does not run.", n.Name),
			Why:  "A quorum queue needs a majority of its nodes. If another node stops, the queue may stop, too.",
			Do:   "Start the node, or remove it from the cluster: rabbitmqctl forget_cluster_node.",
		})
	}
	return found
}

// errAbsent means that the broker has no object with this name.
var errAbsent = errors.New("not found")

type management struct {
	base  *url.URL
	vhost string
}

// management uses --management-url, or port 15672 of the host in --amqp-url.
func (d *doctor) management() (*management, error) {
	broker, err := amqp091.ParseURI(d.app.settings.amqpURL)
	if err != nil {
		return nil, errors.New("the broker's address is invalid")
	}
	base := &url.URL{Scheme: "http", Host: net.JoinHostPort(broker.Host, "15672")}
	if d.app.settings.managementURL != "" {
		if base, err = url.Parse(d.app.settings.managementURL); err != nil || base.Host == "" {
			return nil, usagef("--management-url must be http:// or https://host:port (it is not shown, it may contain a password)")
		}
	}
	if base.User == nil {
		base.User = url.UserPassword(broker.Username, broker.Password)
	}
	return &management{base, broker.Vhost}, nil
}

const managementTimeout = 2 * time.Second

// get requests a path of the API. A slash within an element, such as a queue, is escaped.
func (m *management) get(ctx context.Context, target any, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, managementTimeout)
	defer cancel()
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		(&url.URL{Scheme: m.base.Scheme, Host: m.base.Host}).String()+m.base.EscapedPath()+"/api/"+strings.Join(path, "/"), http.NoBody)
	if err != nil {
		return err
	}
	password, _ := m.base.User.Password()
	request.SetBasicAuth(m.base.User.Username(), password)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(target)
	case http.StatusNotFound:
		return errAbsent
	}
	return fmt.Errorf("it answers %s", response.Status)
}
