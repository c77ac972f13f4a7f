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

// longestUnacked is how long a consumer of this library may leave a message unacked by
// default, with some room: poison.Config.UnackedWait is 10 minutes.
const longestUnacked = 15 * time.Minute

// defaultDeliveryLimit is that of quorum queues since RabbitMQ 4.
const defaultDeliveryLimit = 20

// errAbsent is the answer of the management API about a name that does not exist.
var errAbsent = errors.New("not found")

// management is RabbitMQ's management API.
type management struct {
	base  *url.URL
	vhost string
}

// management returns the API of --management-url, or of the host of --amqp-url at the
// usual port.
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

// managementTimeout is how long the management API may take to answer.
const managementTimeout = 2 * time.Second

// get decodes the answer about a path. A name within the path is an element of its own.
func (m *management) get(ctx context.Context, to any, path ...string) error {
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
		return json.NewDecoder(response.Body).Decode(to)
	case http.StatusNotFound:
		return errAbsent
	}
	return fmt.Errorf("it answers %s", response.Status)
}

// brokerNode is a part of GET /api/nodes.
type brokerNode struct {
	Name      string `json:"name"`
	Running   bool   `json:"running"`
	MemAlarm  bool   `json:"mem_alarm"`
	DiskAlarm bool   `json:"disk_free_alarm"`
}

// brokerQueue is a part of GET /api/queues/VHOST/NAME.
type brokerQueue struct {
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    map[string]any `json:"effective_policy_definition"`
	Consumers int            `json:"consumers"`
	Messages  int            `json:"messages"`
}

// setting returns a setting of the queue: an argument, or that of a policy.
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

// alarms looks at the nodes, and at the queues of the topics in the outbox.
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
		d.skip("alarms of the broker: the user needs the tag monitoring (" + err.Error() + ")")
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

// queuesOf returns the queues that get the messages of a topic.
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
			Why:  "Quorum queues need a majority of their nodes: one more that ends may stop them.",
			Do:   "Start the node, or remove it from the cluster: rabbitmqctl forget_cluster_node.",
		})
	}
	return found
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
