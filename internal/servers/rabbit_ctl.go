package servers

import (
	"context"
	"strings"
	"time"
)

// RabbitCtl returns the rabbitmqctl command for this broker.
func (r *Rabbit) RabbitCtl() Ctl { return Ctl{r.path("rabbitmqctl")} }

// Ctl runs rabbitmqctl for this broker and returns its output. A broker that is
// starting accepts clients some time before it accepts all commands of rabbitmqctl. If
// rabbitmqctl refuses a command during this time, Ctl repeats the command.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	for {
		output, err := r.RabbitCtl().Run(ctx, "", args...)
		if err == nil || ctx.Err() != nil || !strings.Contains(output, isStarting) {
			return output, err
		}
	}
}

// isStarting is a part of the error that rabbitmqctl prints while a broker is starting.
const isStarting = "requires the 'rabbit' app to be running"

// Eval is like [Ctl.Eval] for this broker. If the broker is still starting, Eval waits
// until it has started, but not longer than RabbitConfig.Patience.
func (r *Rabbit) Eval(ctx context.Context, expression string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		value, err := r.RabbitCtl().Eval(ctx, "case rabbit:is_running() of true -> "+expression+"; false -> it_is_starting end")
		if value != "it_is_starting" && (err == nil || !strings.Contains(err.Error(), isStarting)) {
			return value, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
	}
}

// WriteDefinitions makes the broker write its queues, exchanges and users to disk.
// Without this call, the broker writes them some seconds later. If it is killed before
// that, a new queue is lost together with its messages, even confirmed messages.
func (r *Rabbit) WriteDefinitions(ctx context.Context) error {
	_, err := r.Eval(ctx, "mnesia:sync_log()")
	return err
}

// RaiseMemoryAlarm makes the broker stop reading from connections that publish, so it
// confirms no messages. [Rabbit.ClearMemoryAlarm] ends the alarm.
func (r *Rabbit) RaiseMemoryAlarm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Patience)
	defer cancel()
	// The broker raises the alarm a moment after this command, so the command is repeated
	// until the answer contains the alarm. The answer comes from the process that notifies
	// the connections. So when the answer contains the alarm, this process has notified the
	// connections.
	const raise = "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1}), rabbit_alarm:get_alarms()"
	for {
		alarms, err := r.Eval(ctx, raise)
		if err != nil || strings.Contains(alarms, "memory") {
			return err
		}
	}
}

// ClearMemoryAlarm ends the memory alarm.
func (r *Rabbit) ClearMemoryAlarm(ctx context.Context) error {
	_, err := r.Eval(ctx, "vm_memory_monitor:set_vm_memory_high_watermark(0.8)")
	return err
}
