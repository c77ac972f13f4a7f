package main

import "context"

// group is a list of measurements that are compared. They run alternately, so that a
// disturbance of the machine affects all of them.
type group struct {
	name    string
	about   string
	measure func(b *bench, ctx context.Context) ([]row, error)
}

// groups returns all groups, in the order in which they are printed.
func groups() []group {
	return []group{
		{"drain", "a backlog is forwarded: raw protocol, rabbit.Publisher alone, stock forwarder, ours; each kind of queue", (*bench).drain},
		{"backlog", "forwarding with a million waiting, against a few thousand", (*bench).backlogs},
		{"snapshot", "forwarding while another session holds a snapshot open and dead rows pile up", (*bench).snapshots},
		{"idle", "forwarding while another session has an idle write transaction open, beside the stock forwarder", (*bench).idles},
		{"keys", "forwarding with ordering keys: a thousand, and one hot one", (*bench).keys},
		{"producer", "business transactions with an event, against the same without", (*bench).producers},
		{"rest", "processor time and transaction ids of a forwarder that has nothing to do", (*bench).rests},
		{"batch", "consuming one message a transaction, and in batches", (*bench).batches},
		{"latency", "from commit to consumer, with a hint and without", (*bench).latencies},
		{"consumer", "consuming: a bare transaction, a table of ids by hand, stock, ours; pgbench beside it", (*bench).consumers},
		{"duplicates", "messages that were handled before, against new ones", (*bench).duplicates},
		{"poison", "consuming with one message in a hundred that always fails, against none", (*bench).poisons},
		{"inbox", "consuming with ten million ids in the inbox, against none", (*bench).inboxes},
		{"retention", "forgetting a day of five million ids while messages are claimed", (*bench).retentions},
		{"reconcile", "finding the ids that differ between a sent log and an inbox in another database", (*bench).reconciliations},
		{"look", "lists, groups and status with very many rows, and what a forwarder and a consumer notice", (*bench).looks},
		{"durable", "a consumer that stores its messages first, against one that handles them directly", (*bench).durables},
		{"modes", "a consumer that keeps the order of keys, or compares versions, against one that does neither", (*bench).modes},
		{"fairness", "a few messages of one tenant while another has a million waiting, against none", (*bench).fairness},
		{"outbox-fair", "a few messages of one tenant in the outbox while another has a million there, against none", (*bench).outboxFairness},
		{"console", "the overview of the console with ten million ids: its time, and forwarding and consuming meanwhile", (*bench).consoles},
		{"memory", "resident memory of a process that drains a million", (*bench).memories},
	}
}
