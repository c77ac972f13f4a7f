package servers

import "context"

// RabbitCtl returns the rabbitmqctl command for this broker.
func (r *Rabbit) RabbitCtl() Ctl { return Ctl{r.path("rabbitmqctl")} }

// Ctl runs rabbitmqctl for this broker and returns its output.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	return r.RabbitCtl().Run(ctx, "", args...)
}

// WriteDefinitions makes the broker write its queues, exchanges and users to disk. By
// itself the broker writes them with a delay of seconds: if it is killed, a new queue is
// lost with its messages, even if they were confirmed.
func (r *Rabbit) WriteDefinitions(ctx context.Context) error {
	_, err := r.Ctl(ctx, "eval", "mnesia:sync_log().")
	return err
}

// RaiseMemoryAlarm makes the broker stop reading from connections that publish, so that
// it confirms nothing, until [Rabbit.ClearMemoryAlarm].
func (r *Rabbit) RaiseMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1")
	return err
}

// ClearMemoryAlarm ends the memory alarm.
func (r *Rabbit) ClearMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "0.8")
	return err
}
