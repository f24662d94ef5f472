#pragma once
// A thread in a program that is not ours: it blocks every signal, so that handlers run where the user expects them.

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace gangline {

template <class Function>
std::thread quiet_thread(Function function) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(std::move(function));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace gangline
