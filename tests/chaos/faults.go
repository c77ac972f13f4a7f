package main

// faults returns all kinds of faults.
func faults() []fault {
	var all []fault
	for _, some := range [][]fault{
		processFaults(), postgresFaults(), lockFaults(), brokerFaults(), topologyFaults(), networkFaults(), messageFaults(), handlerFaults(),
		accountFaults(), intentFaults(), pauseFaults(), serviceFaults(),
	} {
		all = append(all, some...)
	}
	return all
}
