// The list of subcommands. A new one: its file, a declaration here, and a line in the table.
#include <array>

#include "cli/command.hpp"

namespace millpond::cli {

command_body add_advise(CLI::App& app);
command_body add_calibrate(CLI::App& app);
command_body add_compare(CLI::App& app);
command_body add_completion(CLI::App& app);
command_body add_diff(CLI::App& app);
command_body add_doctor(CLI::App& app);
command_body add_explain(CLI::App& app);
command_body add_pages(CLI::App& app);
command_body add_plan(CLI::App& app);
command_body add_record(CLI::App& app);
command_body add_replay(CLI::App& app);
command_body add_report(CLI::App& app);
command_body add_run(CLI::App& app);
command_body add_top(CLI::App& app);

std::span<const command_entry> all_commands() noexcept {
  static constexpr std::array table{
      command_entry{"doctor", "What this machine has for GPU memory, and what is misconfigured",
                    "  millpond doctor\n"
                    "  millpond doctor --json --pinned-budget 16GiB\n"
                    "  millpond doctor --gpu sim\n",
                    add_doctor},
      command_entry{"compare", "Every strategy on one workload, its cost, and which one to use",
                    "  millpond compare data/traces/resnet_serving.csv.gz\n"
                    "  millpond compare trace.mpt --gpu 0 --json\n"
                    "  millpond compare --workload inference --seed 7\n",
                    add_compare, true},
      command_entry{"advise",
                    "Which memory each place of a recorded program should use, and what to write",
                    "  millpond advise server.mpt\n"
                    "  millpond advise data/traces/resnet_serving.csv.gz --json\n",
                    add_advise, true},
      command_entry{"diff", "What changed between two traces; exit status 1 where it got worse",
                    "  millpond diff main.mpt branch.mpt\n"
                    "  millpond diff main.mpt branch.mpt --bytes 0.02 --json\n",
                    add_diff, true},
      command_entry{"replay", "One workload through one strategy, with its contents checked",
                    "  millpond replay trace.mpt --strategy millpond-pool\n"
                    "  millpond replay --workload churn --strategy driver-pool --rounds 3\n",
                    add_replay, true},
      command_entry{"record", "Run a CUDA program and write down what it does with memory",
                    "  millpond record -- ./server --port 80\n"
                    "  millpond record -o train.mpt --last 1000000 -- python3 train.py\n"
                    "The exit status is the program's; 3 where nothing was recorded.\n",
                    add_record},
      command_entry{
          "explain",
          "What is wrong with a recorded program's memory, where, and what to write instead",
          "  millpond explain server.mpt\n"
          "  millpond explain data/traces/resnet_serving.csv.gz --json\n",
          add_explain, true},
      command_entry{"report", "One page of charts that opens offline; or the trace for other tools",
                    "  millpond report server.mpt -o report.html\n"
                    "  millpond report before.mpt after.mpt -o both.html\n"
                    "  millpond report snapshot.pickle --replay --gpu sim -o report.html\n"
                    "  millpond report server.mpt --from 1.5s --to 1.7s -o there.html\n"
                    "  millpond report server.mpt --format perfetto -o server.perfetto.json\n",
                    add_report, true},
      command_entry{"calibrate", "What this card costs, as a profile for the simulated GPU",
                    "  millpond calibrate -o my_card.toml\n"
                    "  millpond compare trace.mpt --gpu sim:my_card.toml\n",
                    add_calibrate},
      command_entry{"plan",
                    "Fixed offsets for known lifetimes, from an instance or a trace's iteration",
                    "  millpond plan data/planning/A.1048576.csv --capacity 1048576 -o plan.csv\n"
                    "  millpond plan --check plan.csv --capacity 1048576\n"
                    "  millpond plan data/traces/llama_train.csv.gz --json\n"
                    "  millpond plan streams.csv --waits waits.csv -o plan.csv\n",
                    add_plan, true},
      command_entry{"pages",
                    "What managed memory does under a pattern of access, and what would be better",
                    "  millpond pages --size 1GiB --pattern stream\n"
                    "  millpond pages --size 1GiB --pattern stream --page 64KiB\n"
                    "  millpond pages --size 256MiB --advice preferred-host,read-mostly --json\n"
                    "  millpond pages --size 4KiB --pattern ping-pong --rounds 500\n",
                    add_pages},
      command_entry{"run", "An unchanged program with its CUDA memory from the pool",
                    "  millpond run --pool -- ./program --its --arguments\n"
                    "  millpond run --pool --report --limit 16GiB -- python3 train.py\n",
                    add_run},
      command_entry{
          "top",
          "What a running program does with memory, live: kinds, rates, latencies, holes, hot "
          "call sites",
          "  millpond top -- ./server --port 80\n"
          "  millpond top 4242                          # a process under `millpond record`\n"
          "  millpond top server.mpt --once --json      # what a trace says until now\n"
          "Keys: q leaves (a program that top started gets an interrupt), s sorts the call\n"
          "sites, space holds. Without a terminal a view is printed each interval; with\n"
          "--json one document a line.\n",
          add_top},
      command_entry{
          "completion", "Completion for a shell, or the manual page, on standard output",
          "  millpond completion bash >~/.local/share/bash-completion/completions/millpond\n"
          "  millpond completion zsh >~/.zfunc/_millpond\n"
          "  millpond completion fish >~/.config/fish/completions/millpond.fish\n"
          "  millpond completion man | man -l -\n"
          "An installed millpond has them in their places.\n",
          add_completion},
  };
  return table;
}

}  // namespace millpond::cli
