package servers

import "context"

// RabbitCtl returns the rabbitmqctl that speaks to this broker.
func (r *Rabbit) RabbitCtl() Ctl { return Ctl{r.path("rabbitmqctl")} }

// Ctl runs rabbitmqctl against this broker and returns what it wrote.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	return r.RabbitCtl().Run(ctx, "", args...)
}

// WriteDefinitions has the broker write which queues, exchanges and users there
// are. It does that at its leisure: what was declared in the last seconds is
// gone when it is killed, with the messages in it, confirmed or not.
func (r *Rabbit) WriteDefinitions(ctx context.Context) error {
	_, err := r.Ctl(ctx, "eval", "mnesia:sync_log().")
	return err
}

// RaiseMemoryAlarm makes the broker read nothing more from connections that
// publish, and so confirm nothing, until [Rabbit.ClearMemoryAlarm].
func (r *Rabbit) RaiseMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1")
	return err
}

// ClearMemoryAlarm ends it.
func (r *Rabbit) ClearMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "0.8")
	return err
}
