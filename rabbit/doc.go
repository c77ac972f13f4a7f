// Package rabbit connects Watermill to RabbitMQ.
//
// [Publisher] reports success only for messages that the broker has routed, persisted and
// confirmed. [Subscriber] has many messages in flight. [Marshaler] never turns metadata into a
// header that controls the broker, and reads every header that a broker sends.
//
// All three use the amqp.Config of watermill-amqp v2. Package amqpv3, a module of its own, has the
// same constructors for the amqp.Config of v3. To adopt them, you change only a constructor:
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
// At most one of these methods returns true. If OneTopic also returns true, the reason concerns
// only the topic. errors.As finds the methods through your own interface, without importing package
// rabbit. The error is a *PublishError and unwraps to one of the package's sentinel errors.
//
// The broker responds to some publishes by closing the channel, and does not say which one was the
// cause. If several messages were unconfirmed, the outcome of all is unknown. Publish them again
// one at a time: then only the one that closes the channel is refused or unacceptable. For this
// reason a forwarder needs its own Publisher: on a shared one, a message is rarely the only
// unconfirmed one.
package rabbit
