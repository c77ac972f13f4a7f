// Package dispatch decides what a forwarder reads, publishes and records. It is a state machine: it
// has no goroutine, does no I/O and does not read the clock. The forwarder reports each event to a
// [Scheduler], calls Step, and runs the [Commands] that Step returns.
//
//	event        reported with              command it answers
//	rows read    RowsRead, ReadFailed       Commands.Read
//	outcome      Published                  Commands.Publish
//	settlement   Settled                    Commands.Settle
//	lease        SetSlots, LoseSlots,
//	             Wrote, Recall
//	hint         Hint
//	stop         Stop                       (Drained, Expired)
//	tick         Step                       Commands.WakeAt
//
// # One outcome of a publish
//
//	Published ─▶ attribution: was the message alone?
//	          ─▶ topics:      does its topic answer?
//	          ─▶ confirm      ─▶ settling.Confirmed, successor becomes ready
//	             refuse       ─▶ settling.Charges, key blocked
//	             giveUp       ─▶ settling.Deaths, key blocked
//	             decideUnknown ▶ candidate, or refuse, or postpone and stall the topic
//	             refuseTopic  ─▶ settling.Charges without an attempt, topic stalled
//	             retry        ─▶ ready again
//	Step      ─▶ the next Settle and Publish commands
//
// # Where state is
//
//	buffer       all messages in memory, and their bytes
//	  ready      messages that may be published, by topic and position
//	  ahead      the same for messages that a lookahead has found
//	  keyQueue   messages of one ordering key: the head, and those that wait for it
//	cursor       the position above which the outbox must be read
//	reading      the read under way, and when the next one is due
//	lookahead    which rows after a long backlog were examined
//	topics       messages in flight of each topic, and stalled topics
//	  refusals   refused messages of each topic, for the log
//	attribution  messages that may have closed a channel
//	settling     outcomes that wait to be recorded, and the settlement under way
//	outage       consecutive failures of reading, publishing or settling
//	Scheduler    slots, number of publishes in flight, whether messages may be sent, stop
//
// A message is in buffer.messages from the read of its row until its outcome is recorded, or until
// it is dropped to be read again. In between it is in one place: in ready, behind the head of its
// key queue, in flight, among the candidates, in settling.waiting, or in the settlement under way.
//
// # Rules
//
//   - At most one message of an ordering key is unconfirmed and in flight.
//   - A message whose outcome is known is not published again before the outcome
//     is recorded or its slot is lost.
//   - A key whose head was refused is blocked: its successors are dropped, and
//     read again after the head is settled.
//   - Rows can be committed late, below rows that were sent. The cursor passes a
//     position only when no transaction can add a row below it.
//   - The result of a read that began before slots were lost is ignored.
package dispatch
