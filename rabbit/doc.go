// Package rabbit is the RabbitMQ end: a Publisher whose nil means routed,
// persisted and confirmed, a Subscriber with many messages in flight, and a
// Marshaler that lets no message's metadata steer the broker and fails on no
// header that the broker wrote.
//
// They take the amqp.Config of watermill-amqp v2, so that adopting them is
// changing a constructor:
//
//	config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
//	config.Marshaler = rabbit.Marshaler{}
//	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
//	subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
//
// # What an error of the publisher says
//
//	method of the error   what happened                    what to do with the message
//	Refused()             the broker said no to it         charge an attempt, try later
//	Unacceptable()        it can never be accepted         dead letter, at once
//	Unavailable()         it was not sent                  try again, charge nothing
//	none of them          it was sent, the outcome is      send it again under the same id,
//	                      unknown                          charge nothing
//
// At most one of the methods is true. They are found with errors.As and an
// interface of one's own, so that nobody has to import this package to
// classify; the error itself is a *PublishError and unwraps to one of the
// package's sentinels.
//
// A broker answers some publishes by closing the channel, and does not say
// which publish it meant. When several were outstanding, all of them are
// unknown and nobody is blamed; publish them again one at a time, and only the
// one that closes the channel while it is alone is refused or unacceptable.
//
// So a forwarder needs a Publisher of its own: on one that others publish
// through as well, a message is hardly ever alone.
package rabbit
