# Two commands do everything, set-up included: `make demo` and `make test`.
.PHONY: help demo test test-slow test-services check lock benchmark
.DEFAULT_GOAL := help

BIN := .venv/bin

help:
	@echo "make demo   train 18 small runs, fit, allocate, report (results in demo-out/)"
	@echo "make test   the default tests"
	@echo "make check  ruff, mypy, import contracts"

.venv/ready: requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh

demo: .venv/ready
	$(BIN)/bayeslaw demo --out demo-out

test: .venv/ready
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: .venv/ready
	$(BIN)/python -m pytest -m "slow and not gpu and not service"

test-services: .venv/ready
	$(BIN)/python -m pytest -m service

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmark: .venv/ready
	$(BIN)/python benchmarks/posterior.py
	$(BIN)/python benchmarks/paper.py
	$(BIN)/python benchmarks/default_model.py
	$(BIN)/python benchmarks/allocation.py
	$(BIN)/python benchmarks/frontier.py
	$(BIN)/python benchmarks/recipes.py
	$(BIN)/python benchmarks/rates.py
	$(BIN)/python benchmarks/learning.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/training.py --steps 4
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/breakdown.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/desk.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/evaluation.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/regimes.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/runs.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/load.py --capacity --seconds 12
	$(BIN)/python benchmarks/faults.py

# Versions move here and nowhere else. uv.lock holds addresses and stays ignored.
lock: .venv/ready
	uv lock --upgrade
	uv export --format requirements-txt --no-header --no-emit-project --all-extras -o requirements.lock
