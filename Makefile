# The commands for people are ./demo, ./test and ./cluster; this file is for those who work on the project.
PYTHON = .venv/bin/python
SEEDS ?= 200
ROUNDS ?= 20
NODES ?= 1
CLIENTS ?= franz-go sarama kafkajs
.DEFAULT_GOAL = help
.PHONY: cpu-budgets conform-franz-go conform-kminion conform-librdkafka conform-registry conform-secured crash-streams help setup test test-slow test-long explore ci lint format types contracts tidy docs generate demo conform conform-cluster conform-cluster-kills diff-peer console-peer doctor-peer sim crash crash-cluster spoil-cluster crash-pipelines fuzz fuzz-login bench bench-queues bench-secure bench-spark bench-console bench-peer release upgrade

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv and install everything the project is worked on with
	@sh -c '. ./tools/venv.sh; prepare_venv dev --editable ".[spark,console,schemas]" --group dev'

test:  ## run the tests (ARGS="tests/log -k recovery")
	./test $(ARGS)

test-slow:  ## run the tests that ./test leaves to .ci/run: quicker ones promise the same, or they need a browser
	./test -m 'slow or browser' $(ARGS)

test-long: setup  ## run the tests that kill for minutes, and every seed that the simulator failed on once
	$(PYTHON) -m pytest -m long $(ARGS)

cpu-budgets:  ## run the tests as .ci/run does, with empty caches, and record the CPU of each file
	rm -rf .venv/pycache
	./test -m 'not long' --cpu-budgets write $(ARGS)

explore: setup  ## let hypothesis look for new examples (ROUNDS=20); what it finds becomes a test
	for round in $$(seq $(ROUNDS)); do $(PYTHON) -m pytest -q -n auto --explore $$(grep -rl "^from hypothesis\|^import hypothesis" tests --include="test_*.py") || exit 1; done

ci:  ## run everything a change must pass
	.ci/run

lint: setup  ## check style and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

format: setup  ## mend style and format where a tool can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

types: setup  ## check types: strict in the pure rooms
	.venv/bin/pyright

contracts: setup  ## check that imports go one way
	.venv/bin/lint-imports

tidy: setup  ## print the sizes of files and functions
	$(PYTHON) -m tests.test_tidy

docs: setup  ## write docs/configuration.md and docs/cli.md anew
	$(PYTHON) -m tools.write_docs

generate: setup  ## write the codec from the message definitions, and the table of APIs from their handlers
	$(PYTHON) -m tools.generate_messages
	$(PYTHON) -m tools.write_api_table

release: setup  ## build wheel and sdist and try each in a fresh environment; ARGS="--version 0.2.0" names the version
	$(PYTHON) -m tools.release $(ARGS)

demo:  ## play the demonstration
	./demo

conform: setup  ## run kafka-python's own integration suite against a node
	$(PYTHON) -m tools.conform_kafka_python $(ARGS)

conform-cluster: setup  ## run the client tests on three nodes with three copies of everything
	$(PYTHON) -m pytest -q -n 0 tests/conform --three-nodes --deselect tests/conform/test_spark_connector.py $(ARGS)

conform-cluster-kills: setup  ## run them while a node is killed (-9) and started again every 4 seconds
	$(PYTHON) -m pytest -q -rs -n 0 tests/conform --three-nodes --kill-every 4 --timeout 300 --deselect tests/conform/test_spark_connector.py $(ARGS)

conform-franz-go: setup  ## run franz-go's transactions and groups against a node, or against three that die in turn (NODES=3; needs Go; ARGS="--suite CHECKOUT" adds its own ETL tests)
	$(PYTHON) -m tools.conform_franz_go --nodes $(NODES) $(ARGS)

conform-librdkafka: setup  ## run librdkafka's own suite against a node, or three (RUNNER=path of test-runner, NODES=3, ARGS="--tests 0098 --kafka DIR")
	$(PYTHON) -m tools.conform_librdkafka $(RUNNER) --nodes $(NODES) $(ARGS)

conform-kminion: setup  ## run the exporter kminion against a node (KMINION=path, where it is not on the PATH)
	$(PYTHON) -m tools.conform_kminion $(KMINION)

conform-registry: setup  ## decode by a real schema registry that stores its schemas on a node (REGISTRY=Apicurio's archive)
	$(PYTHON) -m tools.conform_registry $(REGISTRY)

conform-secured: setup  ## log in to a secured node with other clients (CLIENTS="franz-go sarama kafkajs java streams tools"; needs Go, npm; ARGS="--libs DIR" for the last three)
	$(PYTHON) -m tools.conform_secured $(CLIENTS) $(ARGS)

diff-peer: setup  ## ask a Kafka peer and a node the same questions and compare the answers, then three nodes of each
	$(PYTHON) -m tools.diff_peer $(ARGS)
	$(PYTHON) -m tools.diff_peer --nodes 3 $(ARGS)

console-peer: setup  ## try every page of the console on a Kafka peer (PEER=host:port)
	OTTLA_CONSOLE_PEER=$(PEER) $(PYTHON) -m pytest tests/console/test_on_kafka.py $(ARGS)

doctor-peer: setup  ## find the same faults on Ottla and on a Kafka peer of one node (PEER=host:port)
	OTTLA_DOCTOR_PEER=$(PEER) $(PYTHON) -m pytest tests/doctor/test_on_kafka.py $(ARGS)

sim: setup  ## run the node in a simulated world, every workload (SEEDS=200, ARGS="--workload share")
	$(PYTHON) -m ottla.sim --seeds $(SEEDS) $(ARGS)

crash: setup  ## kill -9 a loaded node again and again; count every acknowledged record and every transaction
	$(PYTHON) -m tools.crash_loop $(ARGS)
	$(PYTHON) -m tools.crash_transactions $(ARGS)

crash-cluster: setup  ## kill, pause, stop and cut off the nodes of a cluster under load for 5 minutes (ARGS="--minutes 60 --metadata zookeeper")
	$(PYTHON) -m tools.crash_cluster $(ARGS)

spoil-cluster: setup  ## damage the disk of one node of a cluster, also while it runs, for 5 minutes (ARGS="--minutes 60 --metadata zookeeper")
	$(PYTHON) -m tools.spoil_cluster $(ARGS)

upgrade: setup  ## upgrade three nodes of the previous version one by one under load, and go back (ARGS="--metadata zookeeper"; needs git's history)
	$(PYTHON) -m tools.upgrade_cluster $(ARGS)

crash-pipelines: setup  ## kill -9 driver, workers and node under the sink, its commit, the archive and KMQ's tracker, and count
	$(PYTHON) -m tools.crash_pipelines --pipeline sink $(ARGS)
	$(PYTHON) -m tools.crash_pipelines --pipeline transactions $(ARGS)
	$(PYTHON) -m tools.crash_pipelines --pipeline commit $(ARGS)
	$(PYTHON) -m tools.crash_pipelines --pipeline commit-transactions $(ARGS)
	$(PYTHON) -m tools.crash_pipelines --pipeline archive $(ARGS)
	$(PYTHON) -m tests.harness.spark.tracker.tracker_kill_loop

crash-streams: setup  ## kill -9 a Kafka Streams word count (exactly_once_v2) and its node, or three in turn (NODES=3 ARGS="--libs DIR", the jars of kafka-streams)
	$(PYTHON) -m tools.crash_streams --nodes $(NODES) $(ARGS)

fuzz: setup  ## throw a million mutated frames at a node
	$(PYTHON) -m tools.fuzz_node $(ARGS)

fuzz-login: setup  ## send 20,000 damaged logins to a node (ARGS="--visits 100000 --seed 7")
	$(PYTHON) -m tools.fuzz_login $(ARGS)

bench: setup  ## measure a node
	$(PYTHON) -m bench.node $(ARGS)

bench-queues: setup  ## measure share groups, KMQ and other queues
	$(PYTHON) -m bench.queues $(ARGS)

bench-secure: setup  ## measure TLS, logins and ACLs (ARGS="--kafka DIR" adds a Kafka peer with the same certificates)
	$(PYTHON) -m bench.secure $(ARGS)

bench-spark: setup  ## measure pipelines; ARGS="--connector-python PYTHON --connector-jars DIR" adds Spark's own connector
	$(PYTHON) -m bench.spark $(ARGS)

bench-console: setup  ## measure what the console's open pages cost a node, and the console's memory for 5 minutes
	$(PYTHON) -m bench.console $(ARGS)

bench-peer: setup  ## measure a node and a Kafka peer in turns; appends to bench/RESULTS.md
	$(PYTHON) -m bench.peer $(ARGS)
