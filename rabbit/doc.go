// Package rabbit connects Watermill to RabbitMQ.
//
// [Publisher] reports success only for messages that the broker has routed, persisted
// and confirmed. [Subscriber] has many messages in flight. [Marshaler] never turns
// metadata into a header that controls the broker, and reads every header that a broker
// sends.
//
// All three use the amqp.Config of watermill-amqp v2. To adopt them, you change only a
// constructor:
//
//	config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
//	config.Marshaler = rabbit.Marshaler{}
//	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
//	subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
//
// # Publish errors
//
//	method of the error   outcome of the message           what to do with the message
//	Refused()             the broker refused it            count an attempt, try later
//	Unacceptable()        it can never be accepted         dead-letter it at once
//	Unavailable()         it was not sent                  try again, count no attempt
//	none of them          unknown: it was sent, and no     send it again with the same id,
//	                      response to it arrived           count no attempt
//
// At most one of the methods returns true. You can find the methods with errors.As and
// your own interface, so a package can classify errors without importing package
// rabbit. The error is a *PublishError and unwraps to one of the package's sentinel
// errors.
//
// The broker responds to some publishes by closing the channel, and does not say which
// publish was the cause. If several messages were unconfirmed, the outcome of all of
// them is unknown, and the close is attributed to no message. Publish them again one at
// a time: then only the message that causes the close is refused or unacceptable. For
// this reason a forwarder needs its own Publisher. On a shared Publisher, a message is
// rarely the only unconfirmed message.
package rabbit

// Files whose names begin with publisher_ or subscriber_ belong to [Publisher] or
// [Subscriber]. Read the files in this order:
//
//	marshaler.go                 converts between Watermill's messages and AMQP's
//	marshaler_text.go            header values as text
//	check.go                     which messages RabbitMQ cannot take
//	topic_exchange.go            one exchange for all events, with patterns
//	reconnector.go               keeps a connection up
//	connection.go                one connection, its requests and its end
//	connection_config.go         validation and defaults of the connection
//	connection_dial.go           connects within a deadline
//	connection_tls.go            TLS below AMQP
//	backoff.go, redact.go        pauses; removes credentials from errors
//	ping.go                      waits until the broker can be used
//
//	publisher.go                 Publish, PublishAsync, Close
//	publisher_config.go          PublisherConfig
//	publisher_send.go            from the message to the write buffer
//	publisher_publication.go     one message that is being published
//	publisher_session.go         one connection of a Publisher
//	publisher_exchanges.go       declares exchanges
//	publisher_channel.go         a confirm channel with its outstanding messages
//	publisher_confirms.go        determines and reports outcomes
//	publisher_attribution.go     which message closed a channel
//	publisher_nacks.go           changes the channel after several nacks
//	publisher_errors.go          PublishError and the sentinel errors
//	publisher_destination.go     the name of the place to publish to
//	publisher_instruments.go     metrics
//
//	subscriber.go                Subscribe, Close
//	subscriber_config.go         SubscriberConfig
//	subscriber_subscription.go   the loop of one subscription
//	subscriber_channel.go        an AMQP channel with one consumer
//	subscriber_topology.go       declares queues, exchanges and bindings
//	subscriber_delivery.go       from the delivery to the handler's ack or nack
//	subscriber_ack.go            sends acks and nacks
//	subscriber_end.go            the end of a subscription
//	subscriber_limits.go         limits of the broker that lose messages
//	subscriber_instruments.go    metrics
