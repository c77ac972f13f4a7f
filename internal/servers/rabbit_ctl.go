package servers

import (
	"context"
	"strings"
)

// RabbitCtl returns the rabbitmqctl command for this broker.
func (r *Rabbit) RabbitCtl() Ctl { return Ctl{r.path("rabbitmqctl")} }

// Ctl runs rabbitmqctl for this broker and returns its output. A broker accepts clients
// shortly before its start has ended, and until then rabbitmqctl refuses most commands: Ctl
// then repeats the command.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	for {
		output, err := r.RabbitCtl().Run(ctx, "", args...)
		if err == nil || ctx.Err() != nil || !strings.Contains(output, "requires the 'rabbit' app to be running") {
			return output, err
		}
	}
}

// WriteDefinitions makes the broker write its queues, exchanges and users to disk. By
// itself the broker writes them some seconds later. If it is killed before that, a new
// queue is lost with its messages, even with confirmed ones.
func (r *Rabbit) WriteDefinitions(ctx context.Context) error {
	_, err := r.Ctl(ctx, "eval", "mnesia:sync_log().")
	return err
}

// RaiseMemoryAlarm makes the broker stop reading from connections that publish, so it
// confirms no message. [Rabbit.ClearMemoryAlarm] ends this.
func (r *Rabbit) RaiseMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1")
	return err
}

// ClearMemoryAlarm ends the memory alarm.
func (r *Rabbit) ClearMemoryAlarm(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "0.8")
	return err
}
