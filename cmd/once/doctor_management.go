package main

import (
	"context"
	"errors"
	"fmt"
)

// brokerNode is a node in the response to GET /api/nodes.
type brokerNode struct {
	Name      string `json:"name"`
	Running   bool   `json:"running"`
	MemAlarm  bool   `json:"mem_alarm"`
	DiskAlarm bool   `json:"disk_free_alarm"`
}

// alarms checks the nodes of the broker. It also checks the queues that receive the
// topics of the outbox and of the dead letters.
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
