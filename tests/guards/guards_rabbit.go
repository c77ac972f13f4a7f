package main

// rabbitGuards are those of the publisher and the subscriber.
func rabbitGuards() []guard {
	return []guard{
		{
			trap: 7, what: "a nack is no confirm",
			file: "rabbit/publisher_confirms.go", guard: "case r.Kind == amqpwire.Nack:", without: "case r.Kind == amqpwire.Nack && false:",
			pkg: "rabbit", test: "TestTrap07",
		},
		{
			trap: 8, what: "every message is mandatory",
			file: "internal/amqpwire/frames.go", guard: "const mandatory = 1", without: "const mandatory = 0",
			pkg: "rabbit", test: "TestTrap08",
		},
		{
			trap: 8, what: "the ack of a returned message is no confirm",
			file: "rabbit/publisher_confirms.go", guard: "case isReturned:", without: "case isReturned && false:",
			pkg: "rabbit", test: "TestTrap08",
		},
		{
			trap: 9, what: "a close is not attributed to one of several messages",
			file: "rabbit/publisher_attribution.go", guard: "if ch.outstanding() == 1 && ch.closed.Server {", without: "if ch.closed.Server {",
			pkg: "rabbit", test: "TestTrap09_Missing",
		},
		{
			trap: 9, what: "what was lost with a channel is unknown",
			file: "rabbit/publisher_attribution.go", guard: "kind := ErrUnknown", without: "kind := ErrNacked",
			pkg: "rabbit", test: "TestTrap09_Missing",
		},
		{
			trap: 10, what: "headers over the frame are not sent",
			file: "rabbit/publisher_send.go", guard: "case c.HeaderSize() > p.session.frameSize():",
			without: "case c.HeaderSize() > p.session.frameSize() && false:",
			pkg:     "rabbit", test: "TestTrap10_Headers",
		},
		{
			trap: 10, what: "names over 255 bytes are not sent",
			file: "rabbit/publisher_send.go", guard: "if len(name.value) > amqpwire.MaxShortString {", without: "if len(name.value) > 1<<30 {",
			pkg: "rabbit", test: "TestTrap10_Oversized",
		},
		{
			trap: 11, what: "a body over the broker's limit is unacceptable",
			file: "rabbit/publisher_attribution.go", guard: `if strings.Contains(reason.Reason, "message size") {`,
			without: `if strings.Contains(reason.Reason, "of another size") {`,
			pkg:     "rabbit", test: "TestTrap11",
		},
		{
			trap: 12, what: "publishing pauses while the broker is short of memory",
			file: "rabbit/publisher_send.go", guard: "case p.session.blocked:", without: "case p.session.blocked && false:",
			pkg: "rabbit", test: "TestTrap12",
		},
		{
			trap: 13, what: "a confirm has a deadline",
			file: "rabbit/publisher_channel.go", guard: "time.Now().Add(ch.session.p.cfg.ConfirmTimeout)", without: "time.Now().Add(time.Minute)",
			pkg: "rabbit", test: "TestTrap13_Frozen",
		},
		{
			trap: 13, what: "connecting has a deadline",
			file: "rabbit/connection_dial.go", guard: "context.WithTimeout(ctx, dial.dialTimeout)", without: "context.WithCancel(ctx)",
			pkg: "rabbit", test: "TestTrap13_Connecting",
		},
		{
			trap: 14, what: "every message is persistent",
			file: "internal/amqpwire/content.go", guard: "append(setSize(l.bytes, headers), amqp.Persistent)",
			without: "append(setSize(l.bytes, headers), max(amqp.Transient, p.DeliveryMode))",
			pkg:     "rabbit", test: "TestTrap14",
		},
		{
			trap: 15, what: "the reader of the connection waits for nobody",
			file: "rabbit/publisher_channel.go", guard: "func() { notify(s.p.wake) }", without: "func() { s.p.wake <- struct{}{} }",
			pkg: "rabbit", test: "TestTrap15",
		},
		{
			trap: 16, what: "transactional publishing is refused",
			file: "rabbit/publisher_config.go", guard: "errs.requiref(!config.Publish.Transactional,", without: "errs.requiref(true,",
			pkg: "rabbit", test: "TestTrap16",
		},
		{
			trap: 17, what: "a channel that cannot be opened costs the connection",
			file: "rabbit/publisher_session.go", guard: "\t\t\treturn false, s.lossReason(err)\n",
			without: "\t\t\t<-p.ctx.Done()\n\t\t\treturn false, s.lossReason(err)\n",
			pkg:     "tests/forwarding", test: "TestForwarderSurvivesFailuresToOpenAChannel",
		},
		{
			trap: 32, what: "no metadata steers the broker",
			file: "rabbit/marshaler.go", guard: ") && !meta.Steering(key)", without: ")",
			pkg: "rabbit", test: "TestTrap32_NoCopy",
		},
		{
			trap: 67, what: "nothing more goes on the channel of what is overdue",
			file: "rabbit/publisher_confirms.go", guard: "pub.overdue = true\n\t\tif ch == l.current {",
			without: "pub.overdue = true\n\t\tif ch == l.current && false {",
			pkg:     "rabbit", test: "TestTrap67",
		},
		{
			trap: 74, what: "returns are noted in order with the acks",
			file: "internal/amqpwire/channel.go", guard: "c.record(*c.returning)", without: "go c.record(*c.returning)",
			pkg: "rabbit", test: "TestTrap74_Returns",
		},
		{
			trap: 74, what: "a return is of a publish, not of an id",
			file: "rabbit/publisher_confirms.go", guard: "\t\t\tch.returned[r.Number] = r\n",
			without: `
			for _, pub := range ch.pending {
				if of := ch.find(r.Number); of != nil && !pub.settled && pub.id == of.id {
					r.Number = pub.number
					break
				}
			}
			ch.returned[r.Number] = r
`,
			pkg: "rabbit", test: "TestTrap74_OneId",
		},
		{
			trap: 75, what: "nor does that of the publisher",
			file: "rabbit/publisher.go", guard: "time.NewTimer(p.cfg.CloseTimeout)", without: "time.NewTimer(time.Minute)",
			pkg: "rabbit", test: "TestTrap75_CloseUnder",
		},
		{
			trap: 76, what: "an overdue confirm costs a channel and not the connection",
			file: "rabbit/publisher_nacks.go", guard: "l.p.retire(ch)\n", without: "l.p.retire(ch)\n\tch.session.wire.Abort(ErrUnknown)\n",
			pkg: "rabbit", test: "TestTrap76_OneStuck",
		},
		{
			trap: 76, what: "a subscription to a queue that does not answer can be ended",
			file: "rabbit/subscriber_end.go", guard: "time.NewTimer(patience)", without: "time.NewTimer(time.Minute)",
			pkg: "rabbit", test: "TestTrap76_CloseOfASubscription",
		},
		{
			trap: 76, what: "nor does its end cost the connection of others",
			file: "rabbit/subscriber_channel.go", guard: "ch.conn.queueRequest(f)", without: "ch.conn.request(context.Background(), f)",
			pkg: "rabbit", test: "TestTrap76_EndsOf",
		},
		{
			trap: 76, what: "who waits for a queue that does not answer can give up",
			file: "rabbit/subscriber_channel.go", guard: "case <-sub.ctx.Done():", without: "case <-sub.stopped:",
			pkg: "rabbit", test: "TestTrap76_ASubscribe",
		},
	}
}
